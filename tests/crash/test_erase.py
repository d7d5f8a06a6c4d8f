"""The power is cut at every operation of erase, and of the open that finishes a batch.

What is left is intact: every blob that was to be erased is there as it was or erased, all others
are what they were, and the next steps finish the rest.
"""

from __future__ import annotations

import random
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from lithify.blobs.erase import erase as erase_module
from lithify.blobs.errors import BlobDeleted
from lithify.blobs.visibility import Include
from lithify.clock import ManualClock
from lithify.fs import MemoryFileSystem
from lithify.log.verify import verify_log
from lithify.testing.faulty_fs import MUTATING, Fault, FaultyFileSystem, PowerCut
from tests.unit.blobs.life import DIRECTORY, RETENTION_MS, Life

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(erase_module, "BATCH_FRAMES", 2)


def grown() -> tuple[MemoryFileSystem, Life]:
    """A store of which half is deleted for good, some of it in the dead set of a segment."""
    disk = MemoryFileSystem()
    life = Life(disk, ManualClock())
    life.put("dropped", 300)
    for number in range(6):
        life.put(f"blob {number}", (500, 150_000, 20)[number % 3])
        if number % 2:
            life.roll()
    life.delete("dropped")
    life.roll()
    life.clock.advance(RETENTION_MS / 1000 + 1)
    life.compact("stats")
    for number in range(0, 6, 2):
        life.delete(f"blob {number}")
    life.delete("blob 1")
    life.undelete("blob 2")
    life.delete("blob 5")
    life.roll()
    life.clock.advance(RETENTION_MS / 1000 + 1)
    life.check()
    life.store.close()
    return disk, life


def erase(life: Life) -> None:
    while not life.store.erase.step(10**9).idle:
        pass


def cut_in(
    disk: MemoryFileSystem, life: Life, act: Callable[[Life], None], *faults: Fault
) -> list[str]:
    """Act until the power is cut; the operations on the disk that there were."""
    fs = FaultyFileSystem(disk, record=True)
    dying = life.noted()
    with suppress(PowerCut):
        if act is not open_again:
            dying.open(fs)
            fs.trace.clear()
        for fault in faults:
            fs.add(fault)
        act(dying) if act is not open_again else dying.open(fs)
    return [line for line in fs.trace if line.split()[0] in MUTATING]


def open_again(life: Life) -> None:
    """Told by its name only: opening is what is cut."""


def survives(life: Life, disk: MemoryFileSystem) -> None:
    left = life.reborn(disk)
    assert verify_log(disk, DIRECTORY).damage is None
    doomed = left.to_be_erased()
    left.see_erased()
    left.check()
    left.erase()
    assert doomed <= left.erased
    left.check()
    assert verify_log(disk, DIRECTORY).damage is None
    left.compact("all")
    left.check()
    left.check_erased()
    left.store.close()


@pytest.mark.parametrize("kind", ["CRASH", "CRASH_AFTER"])
def test_the_power_is_cut_at_every_operation_of_erase(kind: str) -> None:
    start, life = grown()
    trace = cut_in(start.kill_clone(), life, erase)
    assert sum(line.startswith("overwrite") for line in trace) > 15
    for nth in range(1, len(trace) + 1):
        disk = start.kill_clone()
        cut_in(disk, life, erase, Fault("mutating", nth=nth, kind=kind))
        left = disk.crash_clone(random.Random(nth)) if nth % 4 else disk.kill_clone()
        try:
            survives(life, left)
        except BaseException as error:
            raise AssertionError(f"{nth=} {kind} {trace[nth - 1]}") from error


def test_the_power_is_cut_again_while_a_torn_batch_is_finished() -> None:
    start, life = grown()
    trace = cut_in(start.kill_clone(), life, erase)
    overwrites = [n + 1 for n, line in enumerate(trace) if line.startswith("overwrite")]
    for first in overwrites[::9]:
        torn = start.kill_clone()
        cut_in(torn, life, erase, Fault("mutating", nth=first, kind="CRASH_AFTER"))
        torn = torn.crash_clone(random.Random(first))
        opening = len(cut_in(torn.kill_clone(), life, open_again))
        for nth in range(1, opening + 1):
            disk = torn.kill_clone()
            cut_in(disk, life, open_again, Fault("mutating", nth=nth, kind="CRASH"))
            survives(life, disk.crash_clone(random.Random(nth)))


def test_without_the_journal_a_cut_would_leave_damage() -> None:
    """That the cuts above tear frames at all: the file that heals them is taken away."""
    start, life = grown()
    trace = cut_in(start.kill_clone(), life, erase)
    damaged = 0
    for nth, line in enumerate(trace, 1):
        if line.startswith("overwrite"):
            disk = start.kill_clone()
            cut_in(disk, life, erase, Fault("mutating", nth=nth, kind="CRASH_AFTER"))
            disk = disk.crash_clone(random.Random(nth))
            disk.remove(f"{DIRECTORY}/ERASE")
            damaged += verify_log(disk, DIRECTORY).damage is not None
    assert damaged > 5


def test_the_power_is_cut_while_erase_and_a_run_follow_each_other() -> None:
    """A run that is killed and one that continues later: what it copied is erased all the same."""
    start, life = grown()

    def both(dying: Life) -> None:
        dying.store.compaction.run(policy="all")
        erase(dying)

    trace = cut_in(start.kill_clone(), life, both)
    for nth in range(1, len(trace) + 1, 3):
        disk = start.kill_clone()
        cut_in(disk, life, both, Fault("mutating", nth=nth, kind="CRASH"))
        left = life.reborn(disk.crash_clone(random.Random(nth)))
        left.store.erase.step(10**9)
        left.store.compaction.recover()
        left.store.compaction.reclaim()
        left.clock.advance(10)
        erase(left)
        for blob_id in ("blob 0", "blob 1", "blob 4", "blob 5"):
            assert left.answer(blob_id, Include.ALL) is BlobDeleted
        left.erased |= {r.position for r in left.records if r.kind == "put"} & left.to_be_erased()
        left.check_erased()
        left.store.close()
        assert verify_log(left.fs, DIRECTORY).damage is None
