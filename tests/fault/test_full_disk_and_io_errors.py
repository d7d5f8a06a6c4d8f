"""Every operation of a log's life fails, alone and with the four after it; and disks that are full.

What must hold: the error is a typed one (only `open` may let an `OSError` out), nothing
acknowledged is lost, and as soon as the file system works again so does the log.
"""

from __future__ import annotations

import random
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from lithify.clock import ManualClock
from lithify.errors import LithifyError, RunRefused, WriteFailed
from lithify.fs import MemoryFileSystem
from lithify.log.log import Log
from lithify.settings import Durability, LogSettings
from lithify.testing.faulty_fs import Fault, FaultyFileSystem
from tests.crash.story import Story
from tests.unit.compaction.logs import (
    DIRECTORY,
    body_of,
    compactor_of,
    contents,
    fill,
    open_log,
    strays,
)

if TYPE_CHECKING:
    from collections.abc import Callable

SEED, LENGTH = 553, 14
"""Two runs with rewrites and dead sets, three reopens, a dropped head, files reclaimed."""


def matches(operation: str) -> int:
    """How often a pattern matches in a life without faults."""
    fs = FaultyFileSystem(MemoryFileSystem(), record=True)
    Story(SEED, LENGTH).play(fs)
    return sum(Fault(operation).matches(*_split(line)) for line in fs.trace)


def _split(line: str) -> tuple[str, list[str]]:
    operation, *paths = line.split()
    return operation, paths


def is_dispensable(fs: FaultyFileSystem, fault: Fault) -> bool:
    """A history that cannot be read is set aside, and a gate that cannot be used is not needed."""
    every = replace(fault, nth=1)
    matching = [line for line in fs.trace if every.matches(*_split(line))]
    return matching[fault.nth - 1].endswith(("/HISTORY", "/gate"))


@pytest.mark.parametrize("count", [1, 5])
@pytest.mark.parametrize(
    ("kind", "operation"), [("EIO", "*"), ("ENOSPC", "mutating"), ("SHORT", "write*")]
)
def test_every_operation_fails(kind: str, operation: str, count: int) -> None:
    total = matches(operation)
    assert total > 30
    for nth in range(1, total + 1):
        fault = Fault(operation, nth=nth, count=count, kind=kind)
        disk = MemoryFileSystem()
        story = Story(SEED, LENGTH)
        try:
            fs = FaultyFileSystem(disk, [fault], record=True)
            story.play(fs, tolerate=True)
            # A close that cannot write the manifest loses nothing: it tells an event only.
            surfaced = story.errors or story.refused or is_dispensable(fs, fault)
            assert surfaced, "the error surfaced nowhere"
            # A failed fsync is told to each append that waited for it.
            assert len(story.errors) <= count + 1, "the log did not continue"
            story.check(disk.crash_clone(random.Random(nth)))
        except (AssertionError, LithifyError, OSError) as error:
            raise AssertionError(f"seed={SEED} fault={fault}: {error!r}") from error


def test_no_operation_works_for_a_while() -> None:
    """The disk dies at some operation, and comes back fifty operations later."""
    for nth in range(30, matches("*"), 10):
        disk = MemoryFileSystem()
        story = Story(SEED, LENGTH)
        fault = Fault("*", nth=nth, count=50, kind="EIO")
        try:
            story.play(FaultyFileSystem(disk, [fault]), tolerate=True)
            story.check(disk.crash_clone(random.Random(nth)))
        except (AssertionError, LithifyError, OSError) as error:
            raise AssertionError(f"seed={SEED} fault={fault}: {error!r}") from error


# --- what is told must stay true ------------------------------------------------------------


def log_on(disk: MemoryFileSystem) -> tuple[FaultyFileSystem, Log]:
    fs = FaultyFileSystem(disk)
    return fs, open_log(fs)


def test_writes_refused_for_a_failed_fsync_do_not_reappear() -> None:
    disk = MemoryFileSystem()
    fs, log = log_on(disk)
    log.append(body_of(0)).result()
    fs.add(Fault("fdatasync", kind="EIO"))
    with pytest.raises(WriteFailed):
        log.append(body_of(1)).result()
    assert log.append(body_of(2)).result() == 2
    assert list(contents(log)) == [0, 2]
    log.close()
    assert list(contents(open_log(disk))) == [0, 2]


def test_a_position_never_has_two_bodies_even_if_its_first_write_failed() -> None:
    """A failed batch leaves whole frames; a power cut undoes that they were cut off."""
    for seed in range(20):
        disk = MemoryFileSystem()
        fs = FaultyFileSystem(disk)
        settings = LogSettings(durability=Durability.NONE)
        log = Log.open(fs, DIRECTORY, kind="test", settings=settings, clock=ManualClock())
        fs.add(Fault("write", "*.seg", kind="SHORT"))
        with pytest.raises(WriteFailed):
            log.append_many([b"refused"] * 4)
        told = {log.append(b"accepted").result(): b"accepted"}
        found = contents(open_log(disk.crash_clone(random.Random(seed))))
        assert all(found.get(position, body) == body for position, body in told.items())


def test_nothing_is_acknowledged_in_a_generation_that_a_power_cut_could_undo() -> None:
    """The manifest of a roll was renamed, but its directory could not be fsynced."""
    for seed in range(20):
        disk = MemoryFileSystem()
        fs, log = log_on(disk)
        log.append(body_of(0)).result()
        # The first fsync of the directory is of the successor's name.
        fs.add(Fault("sync_dir", nth=2, count=3, kind="EIO"))
        with pytest.raises(WriteFailed):
            log.roll()
        with pytest.raises(WriteFailed):
            log.append(body_of(1)).result()
        position = log.append(body_of(1)).result()
        found = contents(open_log(disk.crash_clone(random.Random(seed))))
        assert list(found) == [0, position]


# --- a disk that is really full -------------------------------------------------------------

BALLAST = "/data/ballast"


def nearly_full(room_bytes: int) -> tuple[MemoryFileSystem, Log]:
    """A log of two segments on a disk that has `room_bytes` left, beside another file."""
    fs = MemoryFileSystem(capacity_bytes=30_000)
    log = open_log(fs)
    fill(log, segments=2)
    with fs.open_append(BALLAST) as file:
        file.write(bytes(fs.free_bytes("/") - room_bytes))
    return fs, log


def outlive(*acts: Callable[[], object]) -> list[LithifyError]:
    errors = []
    for act in acts:
        try:
            act()
        except LithifyError as error:
            errors.append(error)
    return errors


def append_until_full(log: Log) -> WriteFailed:
    for _ in range(1000):
        try:
            log.append(body_of(log.next_position)).result()
        except WriteFailed as error:
            return error
    pytest.fail("the disk never was full")


@pytest.mark.parametrize("room_bytes", range(0, 2800, 70))
def test_a_log_on_a_full_disk_refuses_writes_and_resumes_when_there_is_space(
    room_bytes: int,
) -> None:
    fs, log = nearly_full(room_bytes)
    error = append_until_full(log)
    assert "No space left on device" in str(error)
    before = contents(log)
    last = max(before)
    assert len(before) == 20 + (room_bytes // 132)
    errors = outlive(
        log.roll,
        log.sync,
        compactor_of(log, fs, range(0, 1000, 2)).run,
        lambda: log.drop_head(before=0),
        log.reclaim,
        lambda: log.append(b"").result(),
    )
    assert {type(each).__name__ for each in errors} <= {"WriteFailed", "RunRefused", "RunFailed"}
    assert contents(log).items() >= {at: b for at, b in before.items() if at % 2 == 0}.items()

    fs.remove(BALLAST)
    position = log.append(body_of(last + 2)).result()
    assert position > last
    log.roll()
    compactor = compactor_of(log, fs, range(0, 1000, 2))
    compactor.run()
    compactor.reclaim()
    assert strays(fs, log) == []
    after = contents(log)
    log.close()
    for seed in range(3):
        assert contents(open_log(fs.crash_clone(random.Random(seed)))) == after
    assert after.keys() >= {at for at in before if at % 2 == 0}


def test_a_run_that_does_not_fit_is_refused_and_appends_continue() -> None:
    fs, log = nearly_full(room_bytes=2000)
    compactor = compactor_of(log, fs, range(1, 20))
    with pytest.raises(RunRefused, match="scratch space"):
        compactor.run()
    assert strays(fs, log) == []
    log.append(b"still room").result()
    fs.remove(BALLAST)
    assert compactor.run().result == "done"


def test_a_disk_that_was_full_when_the_log_was_opened() -> None:
    fs, log = nearly_full(room_bytes=0)
    log.close()
    fs.remove(BALLAST)
    with fs.open_append(BALLAST) as file:
        file.write(bytes(fs.free_bytes("/")))
    log = open_log(fs)
    assert list(contents(log)) == list(range(20))
    with pytest.raises(WriteFailed):
        log.append(b"no room")
    fs.remove(BALLAST)
    # A power cut could bring back what the refused write left behind, so its position is used up.
    assert log.append(b"room").result() == 21


def test_a_disk_that_is_too_full_to_create_a_log() -> None:
    fs = MemoryFileSystem(capacity_bytes=500)
    with fs.open_append("/ballast") as file:
        file.write(bytes(300))
    with pytest.raises(OSError, match="No space left on device"):
        open_log(fs)
    fs.remove("/ballast")
    log = open_log(fs)
    assert contents(log) == {}
    assert strays(fs, log) == []
    assert fs.exists(f"{DIRECTORY}/MANIFEST")
