"""Questions of the process of one node to that of another."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from lithify.errors import InvalidInput
from lithify.raft.errors import MemberNotReached
from lithify.raft.net.client_operations import OperationRefused
from tests.unit.metastore.nodes import alone, three, told

if TYPE_CHECKING:
    from pathlib import Path

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
