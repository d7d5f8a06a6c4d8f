"""Every operation on the disk fails once, under writes and runs of a blob store that continues.

What was refused has changed nothing, what was not is there, and the next try works.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from lithify.clock import ManualClock
from lithify.errors import Corrupt, LithifyError, UnsupportedVersion
from lithify.fs import MemoryFileSystem
from lithify.testing.faulty_fs import MUTATING, Fault, FaultyFileSystem
from tests.unit.blobs.life import DIRECTORY, Life

if TYPE_CHECKING:
    from collections.abc import Callable

SCRIPT: list[Callable[[Life], None]] = [
    lambda life: life.put("small", 100),
    lambda life: life.put("large", 150_000, 3000),
    lambda life: life.delete("small"),
    lambda life: life.put("next segment", 100_000),
    lambda life: life.undelete("small"),
    lambda life: life.ttl("small", 5000),
    lambda life: life.put("another segment", 190_000),
    lambda life: life.delete("next segment"),
    lambda life: life.clock.advance(4),
]


def compact(life: Life) -> None:
    """A run that fails may have been published all the same."""
    log, now = life.store.log, life.clock.now_ms()
    before = log.manifest.last_run
    try:
        life.compact("all")
    except LithifyError:
        if log.manifest.last_run != before:
            life.judged(now, log.manifest.horizon)


def live_through(*faults: Fault) -> int:
    """The script twice, with a run after each; what is refused is left out.

    Answers with the number of operations that may fail; after these the store must recover.
    """
    fs = FaultyFileSystem(MemoryFileSystem(), record=True)
    life = Life(fs, ManualClock())
    fs.trace.clear()
    for fault in faults:
        fs.add(fault)
    for _ in range(2):
        for step in SCRIPT:
            try:
                step(life)
            except LithifyError:
                life.check()
        compact(life)
        life.check()
    operations = sum(line.split()[0] in MUTATING for line in fs.trace)
    for _ in range(3):
        life.store.compaction.recover()
        compact(life)
        life.check()
    life.put("the end", 66_000)
    life.check()
    life.store.close()
    return operations


def fail_everywhere(*kinds: str) -> None:
    total = live_through()
    assert total > 60
    for nth in range(1, total + 1):
        kind = kinds[nth % len(kinds)]
        try:
            live_through(Fault("mutating", nth=nth, kind=kind))
        except BaseException as error:
            raise AssertionError(f"{nth=} {kind}") from error


def test_every_operation_fails_once() -> None:
    fail_everywhere("EIO", "ENOSPC", "SHORT")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["EIO", "ENOSPC", "SHORT"])
def test_every_operation_fails_in_every_way(kind: str) -> None:
    fail_everywhere(kind)


def test_no_flipped_bit_goes_unnoticed() -> None:
    start = MemoryFileSystem()
    life = Life(start, ManualClock())
    life.put("small", 300)
    life.put("large", 70_000)
    life.put("gone", 10)
    life.delete("gone")
    life.roll()
    life.clock.advance(9)
    life.put("recent", 500)
    life.store.compaction.run(policy="stats")
    life.judged(life.clock.now_ms(), life.store.log.manifest.horizon)
    life.store.close()
    seen = {"refused": 0, "right": 0}
    for name in start.list(DIRECTORY):
        path = f"{DIRECTORY}/{name}"
        size = start.stat(path).size
        # Content is all alike: a few bytes of it stand for the rest.
        for offset in {
            *range(0, size, 997),
            *range(0, min(size, 600), 2),
            *range(max(0, size - 200), size),
        }:
            disk = start.kill_clone()
            disk.flip(path, offset, 1 << offset % 8)
            try:
                life.reborn(disk).check()
                seen["right"] += 1
            except (Corrupt, UnsupportedVersion):
                assert not name.endswith(".keys"), "it can be rebuilt"
                seen["refused"] += 1
    assert min(seen.values()) > 200, seen
