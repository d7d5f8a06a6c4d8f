"""The verbs of compaction under `lithify raft`, with three real nodes: what operators see."""

from __future__ import annotations

import asyncio
import json
import os
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from lithify.cli.main import app
from lithify.compaction.limits.one_run_per_disk import DiskGate, find_gate_directory
from lithify.errors import RunRefused
from lithify.fs import LocalFileSystem
from lithify.log.file_names import HISTORY
from lithify.raft.client.client import RaftClient
from lithify.raft.kv.client import KvClient
from tests.cli.raft_nodes import Cluster, raft_cluster
from tests.patience import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from lithify.compaction.limits.one_run_per_disk import DiskTurn

Row = dict[str, Any]


def run(cluster: Cluster, *command: str) -> tuple[int, str, str]:
    """(exit code, stdout, stderr) of a command that is told all addresses."""
    nodes = ",".join(map(str, cluster.addresses))
    done = CliRunner().invoke(app, ["raft", *command, "--nodes", nodes])
    return done.exit_code, done.stdout, done.stderr


def rows(cluster: Cluster, *command: str, code: int = 0) -> list[Row]:
    found, out, err = run(cluster, *command, "--json")
    assert found == code, (out, err)
    shown: list[Row] = json.loads(out)
    return shown


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with raft_cluster(tmp_path) as found:
        yield found


def fill(cluster: Cluster) -> None:
    """Overwrite three in four values, so that segments are sparse, and have snapshots taken."""

    async def put() -> None:
        async with RaftClient(cluster.addresses) as client:
            kv = KvClient(client, "default")
            for number in range(600):
                key = b"key%d" % number if number % 4 == 0 else b"often"
                await kv.put(key, b"%03000d" % number)

    asyncio.run(put())
    assert run(cluster, "snapshot")[0] == 0


def states(cluster: Cluster) -> set[tuple[str, str]]:
    return {(row["status"], row["phase"]) for row in rows(cluster, "compaction-status")}


def waits_for(cluster: Cluster) -> set[str]:
    return {row["waitsFor"] for row in rows(cluster, "compaction-status")}


def take_disk(directory: Path) -> DiskTurn:
    """The disk, as another process that compacts has it; waits for the runs that have it now."""
    fs = LocalFileSystem()
    gate = DiskGate(fs, find_gate_directory(fs, os.environ))
    taken: list[DiskTurn] = []

    def take() -> bool:
        try:
            taken.append(gate.enter(str(directory), "a test"))
        except RunRefused:
            return False
        return True

    wait_until(take, seconds=60)
    return taken[0]


def test_every_verb_has_a_row_for_each_node(cluster: Cluster) -> None:
    fill(cluster)
    plans = rows(cluster, "compact", "default", "--dry-run")
    assert sorted(row["node"] for row in plans) == ["n1", "n2", "n3"]
    for row in plans:
        assert row["group"] == "default"
        assert row["plan"]["policy"] == "neighbours"
        assert "horizon " in row["text"]
        assert "snapshot" in row["text"], "the hold has a name"

    ended = rows(cluster, "compact", "default", "--wait")
    assert {row["status"] for row in ended} == {"SUCCESS"}
    assert all(row["report"]["trigger"] == "admin" for row in ended)
    assert all(row["report"]["policy"] == "neighbours" for row in ended)

    status = rows(cluster, "compaction-status")
    assert {row["status"] for row in status} == {"SUCCESS"}
    assert set(status[0]) == {
        "node", "group", "request", "status", "lastError", "phase", "done", "total", "report",
        "waitsFor",
    }  # fmt: skip

    history = rows(cluster, "compaction-history", "--limit", "1000")
    assert {row["node"] for row in history} == {"n1", "n2", "n3"}, "all have merged something"
    assert all(row["result"] == "done" for row in history)
    assert all(row["kept_entries"] <= row["read_entries"] for row in history)
    code, shown, _ = run(cluster, "compaction-history")
    assert (code, shown.count("Runs on default at")) == (0, 3)

    code, _, err = run(cluster, "cancel-compaction")
    assert (code, err.count("no run on default is in progress")) == (4, 3)
    assert run(cluster, "compact", "nothing", "--dry-run")[0] == 1
    assert run(cluster, "compact", "--dry-run", "--wait")[0] == 2


def test_the_history_survives_a_restart_and_a_dead_node_is_a_row(cluster: Cluster) -> None:
    fill(cluster)
    assert run(cluster, "compact", "--wait")[0] == 0
    before = rows(cluster, "compaction-history", "--limit", "1000")
    node = cluster.nodes["n1"]
    node.kill()
    assert list(cluster.directory.glob(f"*/groups/*/{HISTORY}"))
    node.start()
    after = rows(cluster, "compaction-history", "--limit", "1000")
    known = {(row["node"], row["run_id"]) for row in after}
    assert known >= {(row["node"], row["run_id"]) for row in before}

    dead = cluster.nodes["n2"]
    dead.kill()
    for command in (("compact", "--dry-run"), ("compact", "--wait"), ("compaction-status",)):
        found = rows(cluster, *command, code=1)
        (error,) = [row for row in found if "error" in row]
        assert error["address"] == str(dead.address)
        assert error["error"].startswith("unreachable")
        assert sorted(row["node"] for row in found if "node" in row) == ["n1", "n3"]
    for node in cluster.nodes.values():
        node.kill()
    assert run(cluster, "compaction-status")[0] == 5


def test_a_run_waits_for_the_disk_and_can_be_cancelled(cluster: Cluster) -> None:
    fill(cluster)
    turn = take_disk(cluster.directory)
    try:
        assert run(cluster, "compact")[0] == 0
        waits = {("RUNNING", "WAITING")}
        wait_until(lambda: states(cluster) == waits, seconds=60)
        wait_until(lambda: waits_for(cluster) == {"disk: a test"}, seconds=60)
        assert run(cluster, "compact", "--no-wait")[0] == 4
        assert len(rows(cluster, "cancel-compaction")) == 3
        wait_until(lambda: states(cluster) != waits, seconds=60)
    finally:
        turn.release()
    ended = rows(cluster, "compact", "--wait")
    assert {row["status"] for row in ended} == {"SUCCESS"}
