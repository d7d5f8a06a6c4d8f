"""A node hangs (SIGSTOP): it costs clients a moment, not their time limit. Real processes."""

from __future__ import annotations

import asyncio
import signal
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from lithify.cli.main import app
from lithify.raft.client.client import TIMEOUT_S, RaftClient
from lithify.raft.kv.client import KvClient
from lithify.raft.net.client_operations import ClientOperation, MayHaveHappened
from tests.cli.raft_nodes import Cluster, RaftProcess, leader_of, raft_cluster

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LIMIT_S = TIMEOUT_S / 2
"""Far above what it takes on a busy machine, far below the limit of a client."""


@contextmanager
def hanging(node: RaftProcess) -> Iterator[None]:
    node.signal(signal.SIGSTOP)
    try:
        yield
    finally:
        node.signal(signal.SIGCONT)


def first(cluster: Cluster, node: RaftProcess) -> str:
    """All addresses, this one first."""
    others = [each.address for each in cluster.nodes.values() if each is not node]
    return ",".join(map(str, [node.address, *others]))


def run(nodes: str, *command: str) -> tuple[int, str, float]:
    began = time.monotonic()
    done = CliRunner().invoke(app, ["raft", *command, "--nodes", nodes])
    return done.exit_code, done.stdout + done.stderr, time.monotonic() - began


def test_commands_skip_a_node_that_hangs(tmp_path: Path) -> None:
    with raft_cluster(tmp_path) as cluster:
        leader = asyncio.run(leader_of(cluster))
        hung = next(each for each in cluster.nodes.values() if each is not leader)
        nodes = first(cluster, hung)
        with hanging(hung):
            for command in (("put", "k", "v"), ("get", "k"), ("members",), ("scan",)):
                code, text, took_s = run(nodes, *command)
                assert code == 0, text
                assert took_s < LIMIT_S


def test_a_connected_client_reads_at_another_node(tmp_path: Path) -> None:
    async def story(cluster: Cluster, hung: RaftProcess) -> None:
        others = [each.address for each in cluster.nodes.values() if each is not hung]
        async with RaftClient([hung.address, *others]) as client:
            kv = KvClient(client, "default")
            # A follower answers it, so the connection stays.
            assert (await kv.get(b"k")).value == b"v"
            assert client.connection.address == hung.address
            with hanging(hung):
                began = time.monotonic()
                found = await asyncio.gather(*(kv.get(b"k") for _ in range(20)))
                assert {each.value for each in found} == {b"v"}
                members = await client.ask_json("default", ClientOperation.MEMBERS)
                assert "n1 n2 n3" in members["members"]
                assert time.monotonic() - began < LIMIT_S
                assert client.connection.address != hung.address, "it is asked no more"

    with raft_cluster(tmp_path) as cluster:
        leader = asyncio.run(leader_of(cluster))
        assert run(first(cluster, leader), "put", "k", "v")[0] == 0
        hung = next(each for each in cluster.nodes.values() if each is not leader)
        asyncio.run(story(cluster, hung))


def test_a_leader_that_hangs_is_followed_by_another(tmp_path: Path) -> None:
    """What was sent to it is not sent again: its outcome is unknown."""

    async def story(cluster: Cluster, leader: RaftProcess) -> None:
        others = [each.address for each in cluster.nodes.values() if each is not leader]
        async with RaftClient([leader.address, *others], timeout_s=3) as client:
            kv = KvClient(client, "default")
            await kv.put(b"k", b"1")
            assert client.connection.address == leader.address
            with hanging(leader):
                with pytest.raises(MayHaveHappened):
                    await kv.put(b"k", b"2")
                async with RaftClient([leader.address, *others]) as other:
                    began = time.monotonic()
                    assert (await KvClient(other, "default").get(b"k")).value == b"1"
                    assert time.monotonic() - began < LIMIT_S

    with raft_cluster(tmp_path) as cluster:
        asyncio.run(story(cluster, asyncio.run(leader_of(cluster))))
