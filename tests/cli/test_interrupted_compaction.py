"""Ctrl-C in `blobs compact` and `raft compact`: both end, and nothing is lost."""

from __future__ import annotations

import asyncio
import signal
import subprocess
from typing import TYPE_CHECKING

import pytest

import lithify
from lithify.log.file_names import JOURNAL
from lithify.raft.client.client import RaftClient
from lithify.raft.kv.client import KvClient
from tests.cli.interrupts import interrupted
from tests.cli.nodes import COMMAND
from tests.cli.raft_nodes import raft_cluster
from tests.cli.test_raft_compaction import fill, rows, states, take_disk, waits_for
from tests.patience import PROCESS_S_MAX, at_most, wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.raft_nodes import Cluster

INTERRUPTED = 128 + signal.SIGINT
CONTINUES = (
    "lithify: the run continues at the node; lithify raft compaction-status default shows it, "
    "lithify raft cancel-compaction default cancels it\n"
)
STOPPED = (
    "lithify: the run is being stopped; the next lithify blobs compact photos continues it or "
    "starts again\n"
)
BLOBS = 40
MIB = 2**20


def make_store(data: Path) -> None:
    """Half of the blobs are deleted, in three sealed segments."""
    with lithify.open(str(data), durability="none") as node:
        store = node.blobs.create(
            "photos",
            capacity_bytes=8 * MIB,
            segment_bytes=MIB,
            settings={"deleted_retention_ms": 0},
        )
        for number in range(BLOBS):
            content = b"%d" % number * 50_000
            store.put(content, service="test", blob_id=str(number))
        for number in range(0, BLOBS, 2):
            store.delete(str(number))


def check_store(data: Path) -> None:
    """The next run finishes; each blob has its content, and no file is left over."""
    with lithify.open(str(data)) as node:
        store = node.blobs.get("photos")
        before = [info.blob_id for info in store.list()]
        assert sorted(before, key=int) == [str(number) for number in range(1, BLOBS, 2)]
        store.compaction.run("test")
        for blob_id in before:
            with store.get(blob_id) as blob:
                assert blob.read() == blob_id.encode() * 50_000
        assert [info.blob_id for info in store.list()] == before
        listed = {segment.name for segment in store.log.manifest.segments}
        there = {path.name for path in (data / "blobs/photos").glob("*.seg")}
        assert there == listed
        assert not (data / "blobs/photos" / JOURNAL).exists()


async def contents(cluster: Cluster) -> dict[bytes, bytes]:
    async with RaftClient(cluster.addresses) as client:
        return {row.key: row.value for row in await KvClient(client, "default").scan(b"", 1000)}


MOMENTS = {
    "the directory is opened": r"open .*/raft/NODE\.tmp",
    "Spark is imported": "import pyspark",
    "the journal is written": r"os\.rename .*/JOURNAL\.tmp",
    "a target is written": r"open .*/photos/0+1-[0-9a-f]{12}\.seg",
    "the run is published": r"os\.rename .*photos/MANIFEST\.tmp",
    "files are deleted": r"os\.remove .*/0+1\.seg",
}
STARTS_NO_SPARK = ("Spark is imported",)


@pytest.mark.parametrize(
    "moment",
    [
        pytest.param(each, marks=() if each in STARTS_NO_SPARK else pytest.mark.slow)
        for each in MOMENTS
    ],
)
def test_an_interrupted_run_on_a_store_is_finished_by_the_next(tmp_path: Path, moment: str) -> None:
    data = tmp_path / "data"
    make_store(data)
    command = ("blobs", "compact", "photos", "--data", data)
    code, text = interrupted(tmp_path / "hook", MOMENTS[moment], *command)
    assert code == INTERRUPTED, text
    assert "Traceback" not in text
    if moment in {"the journal is written", "a target is written"}:
        assert text.endswith(STOPPED), text
    check_store(data)


def test_an_interrupted_command_leaves_the_runs_of_raft_nodes_as_they_are(tmp_path: Path) -> None:
    with raft_cluster(tmp_path, 1) as cluster:
        fill(cluster)
        address = str(cluster.addresses[0])
        command = ("raft", "compact", "default", "--wait", "--nodes", address)
        assert interrupted(tmp_path / "hook", "socket.connect", *command) == (INTERRUPTED, "")
        with (
            take_disk(tmp_path),
            subprocess.Popen([COMMAND, *command], stderr=subprocess.PIPE, text=True) as process,
            at_most(PROCESS_S_MAX, process.kill),
        ):
            assert process.stderr is not None
            assert process.stderr.readline() == "lithify: n1: waiting for disk: a test\n"
            process.send_signal(signal.SIGINT)
            _, text = process.communicate()
            assert (process.returncode, text) == (INTERRUPTED, CONTINUES)
            assert waits_for(cluster) == {"disk: a test"}, "the run is at the node"
        wait_until(lambda: not states(cluster) & {("RUNNING", "WAITING")})
        assert {row["status"] for row in rows(cluster, "compact", "--wait")} == {"SUCCESS"}
        assert {row["result"] for row in rows(cluster, "compaction-history")} == {"done"}
        found = asyncio.run(contents(cluster))
        assert found[b"often"] == b"%03000d" % 599
        kept = {b"key%d" % number: b"%03000d" % number for number in range(0, 600, 4)}
        assert found == kept | {b"often": found[b"often"]}
