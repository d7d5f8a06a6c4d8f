"""Every operation on the disk fails once under erase of a blob store that continues."""

from __future__ import annotations

import pytest

from lithify.blobs.erase import erase as erase_module
from lithify.clock import ManualClock
from lithify.errors import LithifyError
from lithify.fs import MemoryFileSystem
from lithify.log.verify import verify_log
from lithify.testing.faulty_fs import MUTATING, Fault, FaultyFileSystem
from tests.unit.blobs.life import DIRECTORY, RETENTION_MS, Life


def live_through(*faults: Fault) -> tuple[int, int]:
    """(operations that change the disk, errors); in the end everything is as it should be."""
    fs = FaultyFileSystem(MemoryFileSystem(), record=True)
    life = Life(fs, ManualClock())
    for number in range(6):
        life.put(f"blob {number}", (500, 150_000, 20)[number % 3])
        if number % 2:
            life.roll()
    for number in (0, 1, 4):
        life.delete(f"blob {number}")
    life.clock.advance(RETENTION_MS / 1000 + 1)
    doomed = life.to_be_erased()
    fs.trace.clear()
    for fault in faults:
        fs.add(fault)
    errors = 0
    for _ in range(6):
        try:
            life.store.erase.step(10**9)
        except LithifyError:
            errors += 1
        life.see_erased()
        life.check()
        life.clock.advance(1)
    operations = sum(line.split()[0] in MUTATING for line in fs.trace)
    fs.clear()
    life.store.erase.step(10**9)
    life.erased |= doomed
    life.check()
    life.check_erased()
    life.store.close()
    assert verify_log(fs, DIRECTORY).damage is None
    return operations, errors


@pytest.mark.parametrize("kind", ["EIO", "ENOSPC", "SHORT"])
def test_every_operation_fails(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once, four times in a row, or from then on until the disk is repaired."""
    monkeypatch.setattr(erase_module, "BATCH_FRAMES", 3)
    total, errors = live_through()
    assert errors == 0
    assert total > 15
    failed = 0
    for nth in range(1, total + 1):
        count = (1, 4, None)[nth % 3]
        try:
            failed += live_through(Fault("mutating", nth=nth, count=count, kind=kind))[1] > 0
        except BaseException as error:
            raise AssertionError(f"{nth=}") from error
    assert failed > total // 2
