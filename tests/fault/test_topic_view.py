"""The disk is full, or fails, at every operation of a topic's compaction.

What must hold: the error is a typed one, readers see the old view or the new one, appends continue,
and as soon as the disk works again so does the next run.
"""

from __future__ import annotations

import random

import pytest

from lithify.compaction.reports.status import CompactionState
from lithify.errors import LithifyError
from lithify.fs import MemoryFileSystem
from lithify.testing.faulty_fs import Fault, FaultyFileSystem
from lithify.topics.definitions.compaction_settings import TopicCompactionSettings
from tests.topic_life import Life, grown

BALLAST = "/ballast"
REWRITES = TopicCompactionSettings(live_ratio_min=1.0)


def prepared(*, capacity_bytes: int | None = None) -> tuple[MemoryFileSystem, Life]:
    disk = MemoryFileSystem(capacity_bytes=capacity_bytes)
    life = grown(disk, 12, REWRITES)
    life.log.close()
    return disk, life


def outlives(life: Life) -> LithifyError | None:
    """A run that may fail, and if so leaves one of two views: the oracle's old or new one."""
    before = life.oracle.horizon
    try:
        life.compaction.run("test")
    except LithifyError as error:
        failure = error
    else:
        life.judged(life.clock.now_ms())
        return None
    if life.log.manifest.horizon != before:
        life.judged(life.clock.now_ms())
    return failure


def goes_on(life: Life) -> None:
    life.check()
    life.send(3)
    life.compact()
    life.check()
    assert life.compaction.status().state is CompactionState.SUCCESS
    # A history that could not be read is kept under another name, as `side_files.py` says.
    assert set(life.strays()) <= {"HISTORY.damaged-1"}
    life.reopen()
    life.check()


def operations(pattern: str) -> int:
    disk, life = prepared()
    fs = FaultyFileSystem(disk, record=True)
    working = life.reborn(fs)
    fs.trace.clear()
    working.compaction.run("test")
    fault = Fault(pattern)
    return sum(fault.matches(line.split()[0], line.split()[1:]) for line in fs.trace)


@pytest.mark.parametrize(
    ("kind", "pattern", "step"),
    [
        ("ENOSPC", "mutating", 1),
        ("SHORT", "write*", 1),
        ("EIO", "*", 7),
        pytest.param("EIO", "*", 1, marks=pytest.mark.slow),
    ],
)
def test_every_operation_of_a_run_fails(kind: str, pattern: str, step: int) -> None:
    start, life = prepared()
    total = operations(pattern)
    assert total > 20
    for nth in range(1, total + 1, step):
        fault = Fault(pattern, nth=nth, count=1 + nth % 3, kind=kind)
        fs = FaultyFileSystem(start.kill_clone())
        failing = life.reborn(fs)
        fs.add(fault)
        try:
            outlives(failing)
            fs.clear()
            goes_on(failing)
        except (AssertionError, LithifyError, OSError) as error:
            raise AssertionError(str(fault)) from error


def test_a_disk_that_is_full_at_any_point_of_a_run() -> None:
    """From so full that nothing begins to so empty that all is done."""
    results = set()
    for room_bytes in [*range(0, 40_000, 1000), 2**19]:
        disk, life = prepared(capacity_bytes=2**20)
        with disk.open_append(BALLAST) as file:
            file.write(bytes(disk.free_bytes("/") - room_bytes))
        full = life.reborn(disk)
        failure = outlives(full)
        results.add(type(failure).__name__)
        disk.remove(BALLAST)
        goes_on(full)
    assert results == {"WriteFailed", "RunFailed", "RunRefused", "NoneType"}


def test_a_topic_that_is_killed_on_a_full_disk() -> None:
    for seed in range(10):
        rng = random.Random(seed)
        disk, life = prepared(capacity_bytes=2**20)
        with disk.open_append(BALLAST) as file:
            file.write(bytes(disk.free_bytes("/") - rng.randrange(20_000)))
        outlives(life.reborn(disk))
        disk.remove(BALLAST)
        disk.sync_dir("/")
        left = disk.crash_clone(rng)
        again = life.reborn(left)
        if again.log.manifest.horizon != life.oracle.horizon:
            again.judged(life.clock.now_ms())
        again.check()
        goes_on(again)
