"""Operators' mistakes on real processes, with the commands that people type.

What is asked for is refused by name, and the group continues; what was acknowledged stays.
"""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from lithify.cli.main import app
from lithify.raft.client.client import RaftClient
from lithify.raft.kv.client import KvClient
from lithify.raft.net.client_operations import ClientOperation
from tests.cli.raft_nodes import Cluster, RaftProcess, leader_of, raft_cluster
from tests.patience import PROCESS_S_MAX
from tests.ports import free_port

if TYPE_CHECKING:
    from pathlib import Path

GROUP = "default"


def run(cluster: Cluster, *command: str) -> tuple[int, str]:
    nodes = ",".join(map(str, cluster.addresses))
    done = CliRunner().invoke(app, ["raft", *command, "--nodes", nodes])
    return done.exit_code, done.stdout + done.stderr


async def overview(node: RaftProcess) -> dict[str, Any]:
    async with RaftClient([node.address]) as client:
        found: dict[str, Any] = await client.ask_json("", ClientOperation.OVERVIEW)
        return found


async def until_silent(leader: RaftProcess, name: str) -> None:
    async with asyncio.timeout(PROCESS_S_MAX):
        while True:
            (group,) = (await overview(leader))["groups"]
            if "silent" in group["peers"].get(name, ""):
                return
            await asyncio.sleep(0.05)


def test_with_a_dead_voter_no_mistake_loses_the_group(tmp_path: Path) -> None:
    with raft_cluster(tmp_path) as cluster:
        leader = asyncio.run(leader_of(cluster))
        alive, dead = (each for each in cluster.nodes.values() if each is not leader)
        assert run(cluster, "put", "k", "v")[0] == 0
        dead.kill()
        asyncio.run(until_silent(leader, dead.node))
        nowhere = f"127.0.0.1:{free_port()}"
        mistakes = {
            ("add", f"n4={nowhere}"): "node n4 was not reached",
            ("add", f"n4={alive.address}"): f"this is node {alive.node}, not n4",
            ("add", f"{alive.node}={nowhere}"): f"{alive.node} is a member already",
            ("remove", alive.node): f"would lose the quorum: {dead.node} of the voters",
            ("remove", leader.node): f"would lose the quorum: {dead.node} of the voters",
            ("move", f"{alive.node}={nowhere}"): f"node {alive.node} was not reached",
        }
        for command, why in mistakes.items():
            code, text = run(cluster, *command)
            assert code != 0
            assert why in text
            assert run(cluster, "put", "k", "-".join(command))[0] == 0
        assert run(cluster, "members")[1].startswith("voters n1 n2 n3;")
        again = run(cluster, "add", f"{dead.node}={dead.address}")
        assert again == (0, f"{dead.node} is a voter already\n")
        # The way that is right: a new node runs, and takes the place of the dead one.
        joined = cluster.joining("n4")
        assert run(cluster, "add", f"n4={joined.address}")[0] == 0
        assert run(cluster, "remove", dead.node)[0] == 0
        assert run(cluster, "get", "k")[0] == 0


def test_recover_prints_as_json_what_it_would_keep_and_changes_nothing(tmp_path: Path) -> None:
    with raft_cluster(tmp_path, 1) as cluster:
        (node,) = cluster.nodes.values()
        assert run(cluster, "put", "k", "v")[0] == 0
        node.end()
    new = tmp_path / "new"
    given = ["raft", "recover", "--from", str(node.data), "--to", str(new), "--json"]
    done = CliRunner().invoke(app, given)
    told = json.loads(done.stderr)
    (group,) = told["groups"]
    assert (done.exit_code, told["type"], group["group"]) == (4, "NotConfirmed", GROUP)
    assert group["last_term"] >= 1
    assert group["last_index"] >= 2
    assert not new.exists()


@pytest.mark.parametrize(
    "command",
    [
        ["verify-backup", "DIR"],
        ["restore", "DIR", "--id", "n1", "--data", "NEW"],
        ["recover", "--from", "DIR", "--to", "NEW"],
    ],
)
def test_a_directory_that_is_not_there_is_not_found(tmp_path: Path, command: list[str]) -> None:
    missing = str(tmp_path / "missing")
    places = {"DIR": missing, "NEW": str(tmp_path / "new")}
    done = CliRunner().invoke(app, ["raft", *(places.get(word, word) for word in command)])
    assert (done.exit_code, done.stderr) == (3, f"lithify: error: {missing}: no such directory\n")
    assert not any(tmp_path.iterdir())


def test_a_directory_that_was_replaced_forks_nothing(tmp_path: Path) -> None:
    """Two of three acknowledge; one of them loses its disk while the other one is away."""

    async def acknowledged(cluster: Cluster) -> tuple[RaftProcess, RaftProcess, RaftProcess]:
        leader = await leader_of(cluster)
        behind, lost = (each for each in cluster.nodes.values() if each is not leader)
        async with RaftClient([leader.address]) as client:
            await KvClient(client, GROUP).put(b"k", b"old")
            await asyncio.to_thread(behind.kill)
            await KvClient(client, GROUP).put(b"k", b"acknowledged")
        return leader, behind, lost

    async def refused(node: RaftProcess, peer: str) -> str:
        async with asyncio.timeout(PROCESS_S_MAX):
            while True:
                seen = await overview(node)
                if peer in seen["refused_by"]:
                    return str(seen["refused_by"][peer])
                await asyncio.sleep(0.05)

    async def leaderless(*nodes: RaftProcess) -> None:
        # Longer than a dozen elections.
        for _ in range(60):
            for node in nodes:
                groups = (await overview(node))["groups"]
                assert not any(group["role"] == "leader" for group in groups)
            await asyncio.sleep(0.05)

    with raft_cluster(tmp_path) as cluster:
        leader, behind, lost = asyncio.run(acknowledged(cluster))
        leader.kill()
        lost.kill()
        lost.wipe()
        lost.start()
        behind.start()
        asyncio.run(leaderless(lost, behind))
        reason = asyncio.run(refused(lost, behind.node))
        assert f"Remove {lost.node} from its groups and add it again" in reason
        for node in (lost, behind):
            assert "its data directory is another one" in node.errors.read_text()
        leader.start()
        assert run(cluster, "get", "k") == (0, "acknowledged\n")
        assert f"refuses {lost.node}: node {lost.node} shows" in run(cluster, "overview")[1]
        assert run(cluster, "remove", lost.node)[0] == 0
        assert run(cluster, "add", f"{lost.node}={lost.address}")[0] == 0
        assert run(cluster, "put", "k", "later")[0] == 0
        leader.kill()
        assert run(cluster, "get", "k") == (0, "later\n")
