"""A serving node is killed with SIGKILL while a run that was asked for over HTTP is in progress.

It is killed while groups are copied, and when all are copied and the manifest is being replaced.
Each time the next node takes the run up where it stopped: what the journal has is used, nothing is
in the result twice, and every blob answers as it did before, also while this continues.

From the last copy to the end of a run it is a few milliseconds, and another process
may see them too late on a busy machine. Then the story is repeated from its beginning.
"""

from __future__ import annotations

import random
import signal
import time
from contextlib import suppress
from functools import wraps
from typing import TYPE_CHECKING

import httpx
import pytest

import lithify
from lithify.blobs.offline.verify import verify_store
from lithify.clock import SystemClock
from lithify.compaction.run.journal import Journal, RunRecord
from lithify.fs import LocalFileSystem
from lithify.log.manifest import read_manifest
from lithify.pipeline.jobs import SMALL_WEIGHT
from tests.cli.nodes import served
from tests.patience import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.cli.nodes import Served

FS = LocalFileSystem()
RUN_S_MAX = 120
TELLINGS_MAX = 10


class TooLate(Exception):
    """A run was over before its node was killed."""


class Photos:
    """A store of about this many segments, half of which is dead, and what is known of it."""

    def __init__(
        self, data: Path, segment_bytes: int, segments: int, write_bytes_per_s: int | None = None
    ) -> None:
        self.data = data
        self.directory = str(data / "blobs" / "photos")
        rng, blob_bytes = random.Random(5), segment_bytes // 8
        settings = {
            "deleted_retention_ms": 0,
            "triggers": ["admin"],
            "budget": {"write_bytes_per_s": write_bytes_per_s},
        }
        with lithify.open(str(data), durability="none") as node:
            store = node.blobs.create(
                "photos",
                capacity_bytes=2 * segments * segment_bytes,
                segment_bytes=segment_bytes,
                settings=settings,
            )
            self.ids = [
                store.put(rng.randbytes(blob_bytes - rng.randrange(2000)), service="s").blob_id
                for _ in range(7 * segments)
            ]
            for blob_id in rng.sample(self.ids, len(self.ids) // 2):
                store.delete(blob_id)

    def answers(self, http: httpx.Client) -> dict[str, tuple[int, bytes]]:
        """What is said of every blob."""
        found = {each: http.get(f"/blobs/photos/{each}") for each in self.ids}
        return {each: (answer.status_code, answer.content) for each, answer in found.items()}

    def journal(self) -> RunRecord | None:
        try:
            return Journal(FS, self.directory).read()
        except FileNotFoundError:
            return None  # The run has ended since the check for one.

    def kill_when(
        self, node: Served, http: httpx.Client, what: Callable[[RunRecord], bool]
    ) -> RunRecord:
        """Kill the node as soon as its journal says this; what it says then."""
        while (record := self.journal()) is None or not what(record):
            assert node.process.poll() is None
            if record is None and is_over(http):
                raise TooLate
            # Often enough to be there before the next step, and the node needs the processor.
            time.sleep(0.0005)
        node.end(signal.SIGKILL)
        left = self.journal()
        if left is None:
            raise TooLate
        return left

    def check_end(self, run_id: str, expected: dict[str, tuple[int, bytes]]) -> None:
        """The next node ends the run, which changes nothing for a client."""
        with served(self.data) as node, httpx.Client(base_url=node.http, timeout=60) as http:
            finished(http)
            assert self.answers(http) == expected
            listed = http.get("/blobs/photos/list?limit=1000").json()["blobs"]
            there = [each for each, (status, _) in expected.items() if status == 200]
            assert sorted(row["id"] for row in listed) == sorted(there), "each of them once"
            [report] = http.get("/blobs/photos/compaction/history").json()
            assert (report["run_id"], report["result"]) == (run_id, "done")
            assert node.end(signal.SIGTERM)[0] == 0
        # Not by the report: if it was published, the next node may have deleted its files before.
        assert self.files() == self.segments(), "nothing that was retired is left"
        assert verify_store(FS, self.directory, SystemClock()).ok

    def segments(self) -> set[str]:
        """The files that belong to the store."""
        return {segment.name for segment in read_manifest(FS, self.directory).segments}

    def files(self) -> set[str]:
        """Those that are there."""
        return {name for name in FS.list(self.directory) if name.endswith(".seg")}


def is_over(http: httpx.Client) -> bool:
    """Has the run ended well? Not before a node has resumed it."""
    found = http.get("/blobs/photos/compaction").json()
    if found["status"] == "RUNNING" or "interrupted" in found["lastError"]:
        return False
    assert found["status"] == "SUCCESS", found
    return True


def finished(http: httpx.Client) -> None:
    """When the run is over."""
    wait_until(lambda: is_over(http), seconds=RUN_S_MAX, every_s=0.05)


def in_time(story: Callable[[Path], None]) -> Callable[[Path], None]:
    """Have a story told again while it is too late for its point, each time in another place."""

    @wraps(story)
    def told(tmp_path: Path) -> None:
        for number in range(TELLINGS_MAX):
            with suppress(TooLate):
                story(tmp_path / str(number))
                return
        raise AssertionError(f"{TELLINGS_MAX} runs were over before their nodes were killed")

    return told


def names(record: RunRecord) -> set[str]:
    return {target.name for target in record.targets.values()}


def is_copied(record: RunRecord) -> bool:
    return len(record.targets) == len(record.groups)


@in_time
def test_a_node_killed_while_it_publishes_resumes(tmp_path: Path) -> None:
    photos = Photos(tmp_path, segment_bytes=2**17, segments=24)
    with served(tmp_path) as node, httpx.Client(base_url=node.http, timeout=60) as http:
        expected = photos.answers(http)
        assert http.post("/blobs/photos/compaction?policy=all").status_code == 202
        copied = photos.kill_when(node, http, is_copied)
    assert len(copied.targets) == len(copied.groups) > 1
    photos.check_end(copied.run_id, expected)
    assert names(copied) <= photos.segments(), "nothing was copied again"


@pytest.mark.slow
@in_time
def test_a_node_that_is_killed_while_it_copies_uses_what_is_copied(tmp_path: Path) -> None:
    photos = Photos(tmp_path, segment_bytes=2**17, segments=24, write_bytes_per_s=500_000)
    with served(tmp_path) as node, httpx.Client(base_url=node.http, timeout=60) as http:
        expected = photos.answers(http)
        assert http.post("/blobs/photos/compaction?policy=all").status_code == 202
        copying = photos.kill_when(node, http, lambda run: 0 < len(run.targets) < len(run.groups))
    with served(tmp_path) as node, httpx.Client(base_url=node.http, timeout=60) as http:
        assert photos.answers(http) == expected
        copied = photos.kill_when(node, http, is_copied)
    assert copied.run_id == copying.run_id
    assert copying.targets.items() <= copied.targets.items()
    photos.check_end(copied.run_id, expected)
    assert names(copied) <= photos.segments(), "nothing was copied again"


@pytest.mark.slow
@in_time
def test_a_node_that_is_killed_in_a_job_of_spark_does_the_job_again(tmp_path: Path) -> None:
    # More than a node's worker does by itself, with targets of which some are there early.
    photos = Photos(tmp_path, segment_bytes=2**22, segments=48, write_bytes_per_s=30_000_000)
    with served(tmp_path) as node, httpx.Client(base_url=node.http, timeout=60) as http:
        expected = photos.answers(http)
        before = photos.segments()
        assert http.post("/blobs/photos/compaction?policy=all").status_code == 202
        while (found := http.get("/blobs/photos/compaction").json())["phase"] != "rewrite":
            assert found["status"] == "RUNNING", found
            time.sleep(0.05)
        while not (orphans := photos.files() - before):
            assert node.process.poll() is None
            time.sleep(0.01)
        node.end(signal.SIGKILL)
    killed = photos.journal()
    assert killed is not None
    assert not killed.targets, "a job is journalled when it is over"
    assert sum(s.live_bytes for s in killed.judged) > SMALL_WEIGHT
    with served(tmp_path) as node, httpx.Client(base_url=node.http, timeout=60) as http:
        assert photos.answers(http) == expected
        copied = photos.kill_when(node, http, is_copied)
    photos.check_end(killed.run_id, expected)
    assert names(copied) <= photos.segments(), "nothing was copied again"
    # Whatever the old worker still wrote when the next node was there already is gone by now.
    assert not orphans & photos.files()
    assert photos.files() == photos.segments()
