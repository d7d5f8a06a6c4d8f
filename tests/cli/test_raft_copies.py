"""An older copy of a node's directory is restored; nodes of two clusters meet. Real processes."""

from __future__ import annotations

import asyncio
import shutil
from typing import TYPE_CHECKING

from lithify.raft.client.client import RaftClient
from lithify.raft.kv.client import KvClient
from tests.cli.raft_nodes import Cluster, RaftProcess, leader_of, raft_cluster
from tests.cli.test_raft_mistakes import overview, run

if TYPE_CHECKING:
    from pathlib import Path

GROUP = "default"


async def put(node: RaftProcess, value: bytes) -> None:
    async with RaftClient([node.address]) as client:
        await KvClient(client, GROUP).put(b"k", value)


async def until_disowned(node: RaftProcess) -> None:
    async with asyncio.timeout(60):
        while (await overview(node))["standing"] != "disowned":
            await asyncio.sleep(0.05)


def copied(node: RaftProcess) -> Path:
    return shutil.copytree(node.data, node.data.with_name(f"{node.node}-copy"), symlinks=True)


def put_back(node: RaftProcess, copy: Path) -> None:
    node.wipe()
    shutil.copytree(copy, node.data, symlinks=True)


def test_an_older_copy_of_a_directory_does_not_vote(tmp_path: Path) -> None:
    """Two of three acknowledge; one of the two comes back as it was before its last start.

    The other one, which knows that start, is there to tell.
    """

    async def acknowledged(cluster: Cluster) -> tuple[RaftProcess, RaftProcess, RaftProcess, Path]:
        leader = await leader_of(cluster)
        behind, stale = (each for each in cluster.nodes.values() if each is not leader)
        await put(leader, b"old")
        stale.end()
        copy = copied(stale)
        stale.start()
        behind.kill()
        # Only with `stale`, which therefore has met the leader with its new start.
        await put(leader, b"acknowledged")
        return leader, behind, stale, copy

    async def leaderless(*nodes: RaftProcess) -> None:
        # Longer than a dozen elections.
        for _ in range(60):
            for node in nodes:
                groups = (await overview(node))["groups"]
                assert not any(group["role"] == "leader" for group in groups)
            await asyncio.sleep(0.05)

    async def is_accepted(node: RaftProcess, by: RaftProcess) -> None:
        async with asyncio.timeout(60):
            while node.node not in (await overview(by))["connected"]:
                await asyncio.sleep(0.05)

    with raft_cluster(tmp_path) as cluster:
        leader, behind, stale, copy = asyncio.run(acknowledged(cluster))
        # The one that knows tells the one that was away, and goes.
        behind.start()
        asyncio.run(is_accepted(leader, behind))
        stale.kill()
        behind.kill()
        leader.kill()
        put_back(stale, copy)
        leader.start()
        stale.start()
        asyncio.run(until_disowned(stale))
        assert "older copy" in stale.errors.read_text()
        leader.kill()
        # Again and again: more starts do not make it any newer.
        stale.kill()
        stale.start()
        behind.start()
        asyncio.run(leaderless(stale, behind))
        leader.start()
        assert run(cluster, "get", "k") == (0, "acknowledged\n")
        assert run(cluster, "remove", stale.node)[0] == 0
        assert run(cluster, "add", f"{stale.node}={stale.address}")[0] == 0
        assert run(cluster, "put", "k", "later")[0] == 0
        leader.kill()
        assert run(cluster, "get", "k") == (0, "later\n")


def test_ordinary_restarts_are_no_older_copies(tmp_path: Path) -> None:
    with raft_cluster(tmp_path) as cluster:
        for round_ in range(3):
            assert run(cluster, "put", "k", f"v{round_}")[0] == 0
            for node in cluster.nodes.values():
                node.kill()
            for node in cluster.nodes.values():
                node.launch()
            for node in cluster.nodes.values():
                node.await_ready()
        assert run(cluster, "get", "k") == (0, "v2\n")
        for node in cluster.nodes.values():
            seen = asyncio.run(overview(node))
            assert (seen["standing"], seen["start"]) == ("accepted", 4)


def test_a_node_of_another_cluster_is_refused_when_it_connects(tmp_path: Path) -> None:
    """Both have the cluster's name, the group's key, and neither has met the other before."""

    async def known(node: RaftProcess) -> str:
        async with asyncio.timeout(60):
            while not (found := (await overview(node))["cluster_id"]):
                await asyncio.sleep(0.05)
            return str(found)

    async def refused(node: RaftProcess, peer: str) -> str:
        async with asyncio.timeout(60):
            while peer not in (seen := await overview(node))["refused"]:
                await asyncio.sleep(0.05)
            assert peer not in seen["connected"]
            return str(seen["refused"][peer])

    stranger = RaftProcess(tmp_path, "n9", {}, join=False)
    with raft_cluster(tmp_path) as cluster:
        try:
            stranger.start()
            ids = {asyncio.run(known(node)) for node in cluster.nodes.values()}
            assert len(ids) == 1, "all members come to the same"
            assert asyncio.run(known(stranger)) not in ids
            stranger.end()
            stranger.peers = {"n1": str(cluster.nodes["n1"].address)}
            stranger.start()
            reason = asyncio.run(refused(cluster.nodes["n1"], "n9"))
            assert "node n9 belongs to cluster" in reason
            assert run(cluster, "put", "k", "v")[0] == 0
        finally:
            stranger.kill()
