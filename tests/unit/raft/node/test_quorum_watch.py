"""Requests to a group without a quorum end soon, and name the voters that are missing."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from lithify.raft.client.client import RaftClient
from lithify.raft.kv import format as kv
from lithify.raft.net.client_operations import (
    ClientOperation,
    MayHaveHappened,
    NoAnswer,
    NoQuorum,
)
from lithify.raft.node import quorum_watch
from tests.unit.raft.net.nodes import until
from tests.unit.raft.node.test_node import client_of, running, settings
from tests.unit.raft.node.test_process_requests import leader_of, put, told

if TYPE_CHECKING:
    from pathlib import Path

    from lithify.raft.node.node import RaftNode

NOWHERE = {"n2": "127.0.0.1:1", "n3": "127.0.0.1:1"}
MISSING = "there is no quorum: n1 is not connected to n2, n3 of the voters n1, n2, n3"


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quorum_watch, "LOST_S", 0.2)


def test_all_requests_to_a_group_without_a_quorum_name_the_missing_voters(tmp_path: Path) -> None:
    async def story() -> None:
        async with running(settings(tmp_path, "n1", peers=NOWHERE)) as node:
            for ask in (
                node.propose("default", b""),
                node.read("default", b""),
                node.requests.remove_member("n2"),
                node.requests.transfer("default", "n2"),
            ):
                with pytest.raises(NoQuorum, match=MISSING):
                    await ask

    told(story)


def test_a_request_that_another_node_may_have_done_stays_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def lost(*_: object) -> tuple[int, bytes]:
        await until(lambda: node.requests.quorums.why_lost("default"))
        raise MayHaveHappened("it was sent and not answered")

    monkeypatch.setattr(RaftClient, "ask", lost)
    node: RaftNode

    async def story() -> None:
        nonlocal node
        async with running(settings(tmp_path, "n1", peers=NOWHERE)) as node:
            with pytest.raises(MayHaveHappened, match=MISSING):
                await node.propose("default", b"")

    told(story)


def test_requests_of_a_client_end_on_demand(tmp_path: Path) -> None:
    async def story() -> None:
        async with (
            running(settings(tmp_path, "n1", peers=NOWHERE)) as node,
            client_of(node, timeout_s=1e6) as client,
        ):
            asked = asyncio.create_task(client.ask("default", ClientOperation.READ, b""))
            await until(lambda: node.transport.channels)
            while not asked.done():
                client.end_requests()
                await asyncio.sleep(0)
            with pytest.raises(NoAnswer):
                await asked

    told(story)


def test_a_quorum_that_is_lost_ends_requests_until_it_is_back(tmp_path: Path) -> None:
    async def story() -> None:
        async with AsyncExitStack() as stack, AsyncExitStack() as others:
            one = await stack.enter_async_context(running(settings(tmp_path, "n1")))
            for name in ("n3", "n2"):
                two = await others.enter_async_context(running(settings(tmp_path, name, join=True)))
                await one.requests.add_member(name, str(two.transport.address), voter=True)
            await put(one, b"k", b"v")
            await others.aclose()
            with pytest.raises(NoQuorum, match=MISSING):
                await one.read("default", kv.get(b"k"))
            back = replace(settings(tmp_path, "n2"), listen=two.transport.address)
            await stack.enter_async_context(running(back))
            await until(lambda: leader_of(one))
            assert await put(one, b"k", b"w")

    told(story)
