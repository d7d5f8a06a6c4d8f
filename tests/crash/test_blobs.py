"""The power is cut at every operation of a blob store's compaction, and of its writes.

What is left has the old generation or the new one, and every operation that returned. One that was
in flight is there or not, never in part.
"""

from __future__ import annotations

import random
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from lithify.blobs.store import BlobStore
from lithify.clock import ManualClock
from lithify.fs import MemoryFileSystem
from lithify.log.verify import verify_log
from lithify.testing.faulty_fs import MUTATING, Fault, FaultyFileSystem, PowerCut
from tests.unit.blobs.life import DIRECTORY, Life, content_of
from tests.unit.blobs.test_group_puts import gathering
from tests.unit.blobs.test_store import create, read

if TYPE_CHECKING:
    from collections.abc import Callable

IDS = [f"blob {number}" for number in range(8)]


def grown() -> tuple[MemoryFileSystem, Life]:
    """A store with segments that are dead, half dead and live, and a run behind it."""
    disk = MemoryFileSystem()
    life = Life(disk, ManualClock())
    for number, blob_id in enumerate(IDS):
        life.put(blob_id, (500, 70_000, 65_536, 0)[number % 4], 5000 if number % 3 == 2 else None)
        life.roll()
    for blob_id in IDS[::2]:
        life.delete(blob_id)
    life.undelete(IDS[0])
    life.roll()
    life.compact("stats")
    life.clock.advance(9)
    life.ttl(IDS[1], 50_000)
    life.delete(IDS[7])
    life.check()
    life.store.close()
    return disk, life


def operations_of(fs: FaultyFileSystem) -> int:
    return sum(line.split()[0] in MUTATING for line in fs.trace)


def cut_in(
    disk: MemoryFileSystem, life: Life, act: Callable[[Life], None], *faults: Fault
) -> FaultyFileSystem:
    """Act until the power is cut; the rest of the process dies with it."""
    fs = FaultyFileSystem(disk, record=True)
    dying = life.reborn(fs)
    fs.trace.clear()
    for fault in faults:
        fs.add(fault)
    with suppress(PowerCut):
        act(dying)
        dying.store.close()
    return fs


def compact(life: Life) -> None:
    life.store.compaction.run(policy="all")


def survives(left: Life, last_run: str) -> None:
    """It is what it was or what the run made of it, and continues as if nothing had happened."""
    log = left.store.log
    was_published = log.manifest.last_run != last_run
    if was_published:
        left.judged(left.clock.now_ms(), log.manifest.horizon)
    left.check()
    left.store.compaction.recover()
    if log.manifest.last_run != last_run and not was_published:
        left.judged(left.clock.now_ms(), log.manifest.horizon)
    left.check()
    left.compact("all")
    left.check()
    left.clock.advance(5)
    left.put("another", 66_000)
    left.delete("another")
    left.roll()
    for policy in ("hybrid", "all", "stats"):
        left.compact(policy)
        left.check()
    left.store.close()
    assert verify_log(left.fs, DIRECTORY).damage is None


@pytest.mark.parametrize("kind", ["CRASH", "CRASH_AFTER"])
def test_the_power_is_cut_at_every_operation_of_a_run(kind: str) -> None:
    start, life = grown()
    last_run = life.store.log.manifest.last_run
    total = operations_of(cut_in(start.kill_clone(), life, compact))
    assert total > 40
    for nth in range(1, total + 1):
        disk = start.kill_clone()
        cut_in(disk, life, compact, Fault("mutating", nth=nth, kind=kind))
        left = disk.crash_clone(random.Random(nth)) if nth % 3 else disk.kill_clone()
        try:
            survives(life.reborn(left), last_run)
        except BaseException as error:
            raise AssertionError(f"{nth=} {kind}") from error


WRITES: list[Callable[[Life], None]] = [
    lambda life: life.put("small", 100),
    lambda life: life.put("large", 150_000),
    lambda life: life.delete("large"),
    lambda life: life.put("next segment", 100_000),
    lambda life: life.undelete("large"),
    lambda life: life.ttl("small", 77),
]


def write(life: Life, states: list[Life]) -> None:
    """Do all of it, noting what the model was before, in between and after."""
    states.append(life.noted())
    for each in WRITES:
        each(life)
        states.append(life.noted())


def is_as(disk: MemoryFileSystem, state: Life) -> bool:
    left = state.reborn(disk)
    try:
        left.check()
    except AssertionError:
        return False
    finally:
        left.store.close()
    return True


@pytest.mark.parametrize("kind", ["CRASH", "CRASH_AFTER"])
def test_the_power_is_cut_at_every_operation_of_writes(kind: str) -> None:
    start, life = grown()
    whole: list[Life] = []
    total = operations_of(cut_in(start.kill_clone(), life, lambda each: write(each, whole)))
    assert total > 15
    for nth in range(1, total + 1):
        disk = start.kill_clone()
        states: list[Life] = []
        fault = Fault("mutating", nth=nth, kind=kind)
        cut_in(disk, life, lambda each, states=states: write(each, states), fault)  # type: ignore[misc]
        left = disk.crash_clone(random.Random(nth)) if nth % 3 else disk.kill_clone()
        # The one that was in flight may have made it.
        possible = whole[len(states) - 1 : len(states) + 1]
        assert any(is_as(left, state) for state in possible), (nth, kind, len(states))


@pytest.mark.parametrize("kind", ["CRASH", "CRASH_AFTER"])
def test_the_power_is_cut_while_puts_are_written_together(kind: str) -> None:
    contents = {f"blob {number}": content_of(number, 100 * number) for number in range(12)}
    for nth in range(1, 5):
        disk = MemoryFileSystem()
        create(disk, directory=DIRECTORY).close()
        fs = FaultyFileSystem(disk)
        store = BlobStore.open(fs, DIRECTORY)
        fs.add(Fault("mutating", nth=nth, kind=kind))
        with suppress(PowerCut), gathering(store) as put:
            puts = {blob_id: put(blob_id, content) for blob_id, content in contents.items()}
        acknowledged = {blob_id for blob_id, done in puts.items() if done.exception() is None}
        assert not acknowledged or nth > 2
        left = BlobStore.open(disk.crash_clone(random.Random(nth)), DIRECTORY)
        found = {info.blob_id for info in left.list()}
        assert acknowledged <= found
        assert {blob_id: read(left, blob_id) for blob_id in found} == {
            blob_id: contents[blob_id] for blob_id in found
        }
        left.close()
