"""Questions of the process of one node to that of another."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from lithify.errors import InvalidInput
from lithify.raft.client.client import RaftClient
from lithify.raft.commands import CommandResults
from lithify.raft.errors import MemberNotReached
from lithify.raft.net.client_operations import ClientOperation, MayHaveHappened, OperationRefused
from tests.unit.metastore.nodes import alone, three, told

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from lithify.raft.commands import RunDone

LONG_S = 60.0


async def double(given: dict[str, Any]) -> dict[str, Any]:
    if given["number"] < 0:
        raise InvalidInput("the number is negative")
    return {"doubled": 2 * given["number"], "rows": [[1, 2, 2**62]] * given["number"]}


async def never(_: dict[str, Any]) -> dict[str, Any]:
    await asyncio.Event().wait()
    return {}


def test_each_node_answers_every_node(tmp_path: Path) -> None:
    async def story() -> None:
        async with three(tmp_path) as metastores:
            nodes = [each.node for each in metastores]
            for node in nodes:
                node.questions.on("double", double)
            for node in nodes:
                for name in ("n1", "n2", "n3"):
                    given = {"number": 5000}
                    answer = await node.questions.ask(name, "double", given, timeout_s=LONG_S)
                    assert answer["doubled"] == 10_000
                    assert answer["rows"][-1] == [1, 2, 2**62]

    told(story)


def test_errors_are_those_of_the_answer_or_name_the_node(tmp_path: Path) -> None:
    async def story() -> None:
        async with three(tmp_path) as metastores:
            asking, asked = (each.node for each in metastores[:2])
            asked.questions.on("double", double)
            asked.questions.on("never", never)
            ask = asking.questions.ask
            with pytest.raises(OperationRefused, match="n2: double: the number is negative"):
                await ask("n2", "double", {"number": -1}, timeout_s=LONG_S)
            with pytest.raises(OperationRefused, match="no answer to 'other'"):
                await ask("n2", "other", {}, timeout_s=LONG_S)
            with pytest.raises(MemberNotReached, match="n2"):
                await ask("n2", "never", {}, timeout_s=0.1)
            with pytest.raises(MemberNotReached, match="its address is not known"):
                await ask("n9", "double", {}, timeout_s=LONG_S)

    told(story)


def test_a_node_alone_answers_its_own_questions_without_a_port(tmp_path: Path) -> None:
    async def story() -> None:
        async with alone(tmp_path) as metastore:
            questions = metastore.node.questions
            questions.on("double", double)
            answer = await questions.ask("n1", "double", {"number": 1}, timeout_s=LONG_S)
            assert answer["doubled"] == 2

    told(story)


def twice(bodies: Sequence[bytes], done: RunDone) -> None:
    """Answers one by one, in another order; some with an error."""
    errors = {b"unknown": MayHaveHappened("perhaps"), b"wrong": InvalidInput("no such request")}
    for place in reversed(range(len(bodies))):
        body = bodies[place]
        done(slice(place, place + 1), errors.get(body) or CommandResults(0, [2 * body]))


def test_requests_of_clients_go_to_the_process(tmp_path: Path) -> None:
    async def story() -> None:
        async with three(tmp_path) as metastores:
            node = metastores[0].node
            async with RaftClient([node.transport.address]) as client:
                with pytest.raises(OperationRefused, match="answers no requests"):
                    await client.ask("", ClientOperation.PROCESS, b"1")
                node.questions.of_clients = twice
                bodies = [b"%d" % number for number in range(200)]
                asked = (client.ask("", ClientOperation.PROCESS_READ, body) for body in bodies)
                answers = await asyncio.gather(*asked)
                assert [reply for _, reply in answers] == [2 * body for body in bodies]
                with pytest.raises(MayHaveHappened, match="perhaps"):
                    await client.ask("", ClientOperation.PROCESS, b"unknown")
                with pytest.raises(OperationRefused, match="no such request"):
                    await client.ask("", ClientOperation.PROCESS, b"wrong")
                with pytest.raises(OperationRefused, match="larger than the limit"):
                    await client.ask("", ClientOperation.PROCESS, bytes(2**24 + 1))

    told(story)
