"""Races in the worst order, made deterministic: hooks stop one of the threads."""

from __future__ import annotations

import errno
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from lithify.errors import LogClosed, PositionOutOfRange, WriteFailed
from lithify.fs import MemoryFileSystem
from lithify.log.manifest import read_manifest
from lithify.positions import DENSE, PACKED, pack
from lithify.testing.faulty_fs import Fault, FaultyFileSystem
from tests.unit.log.helpers import (
    DIRECTORY,
    PATIENCE_S,
    Gate,
    Hook,
    contents,
    fill,
    open_log,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from lithify.log.log import Log
    from lithify.log.manifest import Manifest
    from lithify.log.reader import Snapshot
    from lithify.positions import PositionRule


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as threads:
        yield threads


def hooked(rule: str, callback: Callable[[], None]) -> FaultyFileSystem:
    """A file system that calls back, once, where the rule matches."""
    return FaultyFileSystem(MemoryFileSystem(), [Fault.parse(f"{rule} SLOW")], Hook(callback))


class Waiting(threading.Condition):
    """A condition that notifies when a thread waits for it."""

    def __init__(self, lock: threading.Lock) -> None:
        super().__init__(lock)
        self.waited = threading.Semaphore(0)

    def wait(self, timeout: float | None = None) -> bool:
        self.waited.release()
        return super().wait(timeout)


class TellingLock:
    """A lock that notifies when a thread is about to take it."""

    def __init__(self, lock: threading.RLock, told: threading.Semaphore) -> None:
        self._lock = lock
        self._told = told

    def __enter__(self) -> None:
        self._told.release()
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


def watch_rolls(log: Log) -> Waiting:
    """Tells when an append waits for an fsync to end, because it has to roll."""
    log._writes.ended = Waiting(log._writes.lock)
    return log._writes.ended


def test_a_publish_in_progress_does_not_delay_appends(pool: ThreadPoolExecutor) -> None:
    gate = Gate()
    fs = hooked("rename * nth=2", gate.stop)
    log = open_log(fs)
    publishing = pool.submit(log.publish, lambda m: replace(m, state={"a": 1}), "slow")
    gate.wait_until_reached()
    assert pool.submit(lambda: log.append(b"meanwhile").result()).result(PATIENCE_S) == 0
    assert not publishing.done()
    gate.open()
    assert publishing.result(PATIENCE_S).state == {"a": 1}
    assert contents(log) == {0: b"meanwhile"}


def test_a_roll_waits_for_a_publish_and_settles_what_it_left(pool: ThreadPoolExecutor) -> None:
    gate = Gate()
    fs = hooked("rename * nth=2", gate.stop)
    # The publish fails, and so does the first attempt to find out what it left.
    fs.add(Fault("rename", nth=2))
    fs.add(Fault("open_read", "*MANIFEST"))
    log = open_log(fs)
    fill(log, 3)
    publishing = pool.submit(log.publish, lambda m: m, "fails")
    gate.wait_until_reached()
    rolling = pool.submit(log.roll)
    assert log._publisher.settled
    gate.open()
    with pytest.raises(WriteFailed):
        publishing.result(PATIENCE_S)
    rolling.result(PATIENCE_S)
    assert [segment.entries for segment in log.manifest.segments] == [3, 0]
    fill(log, 3)
    assert list(contents(log)) == list(range(6))
    log.close()
    with open_log(fs) as log:
        assert list(contents(log)) == list(range(6))


def test_a_batch_does_not_outlive_its_first_part(pool: ThreadPoolExecutor) -> None:
    """The batch has to roll and waits for an fsync; that fails and takes the first part along."""
    gate = Gate()
    fs = hooked("fdatasync *", gate.stop)
    fs.add(Fault("fdatasync"))
    log = open_log(fs)
    rolls = watch_rolls(log)
    first = log.append(b"first")
    syncing = pool.submit(first.result)
    gate.wait_until_reached()
    batch = pool.submit(log.append_many, [b"%d" % n * 200 for n in range(9)])
    assert rolls.waited.acquire(timeout=PATIENCE_S)
    gate.open()
    with pytest.raises(WriteFailed):
        syncing.result(PATIENCE_S)
    with pytest.raises(WriteFailed):
        batch.result(PATIENCE_S).result()
    log.append(b"next").result()
    assert list(contents(log).values()) == [b"next"]


def test_a_given_position_is_checked_again_after_waiting(pool: ThreadPoolExecutor) -> None:
    gate = Gate()
    fs = hooked("fdatasync *", gate.stop)
    log = open_log(fs)
    rolls = watch_rolls(log)
    first = log.append(bytes(700))
    syncing = pool.submit(first.result)
    gate.wait_until_reached()
    late = pool.submit(lambda: log.append(bytes(300), position=10).result())
    assert rolls.waited.acquire(timeout=PATIENCE_S)
    small = log.append(b"fits without a roll", position=11)
    gate.open()
    assert syncing.result(PATIENCE_S) == 0
    with pytest.raises(PositionOutOfRange, match="position 10 is out of range, must be 12 or"):
        late.result(PATIENCE_S)
    assert small.result() == 11
    log.close()
    with open_log(fs) as log:
        assert list(contents(log)) == [0, 11]


def test_a_roll_that_waited_repairs_before_it_seals(pool: ThreadPoolExecutor) -> None:
    gate = Gate()
    fs = hooked("fdatasync * nth=2", gate.stop)
    fs.add(Fault("fdatasync", nth=2))
    # The cut after the failed fsync fails as well.
    fs.add(Fault("truncate", "*1.seg", nth=2))
    log = open_log(fs)
    rolls = watch_rolls(log)
    log.append(b"kept").result()
    lost = log.append(bytes(100))
    syncing = pool.submit(lost.result)
    gate.wait_until_reached()
    rolling = pool.submit(lambda: log.append(bytes(1000)).result())
    assert rolls.waited.acquire(timeout=PATIENCE_S)
    gate.open()
    with pytest.raises(WriteFailed):
        syncing.result(PATIENCE_S)
    assert rolling.result(PATIENCE_S) == 2
    assert contents(log) == {0: b"kept", 2: bytes(1000)}
    log.close()
    with open_log(fs) as log:
        assert contents(log) == {0: b"kept", 2: bytes(1000)}


@pytest.mark.parametrize(
    ("slow", "rule"),
    [("fdatasync *1.seg", DENSE), ("fsync *2.seg", DENSE), ("fsync *2.seg", PACKED)],
)
def test_appends_continue_while_a_roll_is_prepared(
    pool: ThreadPoolExecutor, slow: str, rule: PositionRule
) -> None:
    """What was written is fsynced, and the next segment's file made, without the write lock."""
    gate = Gate()
    fs = hooked(slow, gate.stop)
    log = open_log(fs, rule=rule)
    before = log.append(b"before")
    rolling = pool.submit(log.roll)
    gate.wait_until_reached()
    meanwhile = pool.submit(log.append, b"meanwhile").result(PATIENCE_S)
    assert not rolling.done()
    assert not log.must_settle()
    gate.open()
    rolling.result(PATIENCE_S)
    assert [segment.entries for segment in log.manifest.segments] == [2, 0]
    assert meanwhile.done(), "the roll has made it durable"
    behind = log.append(b"behind")
    behind.result()
    expected = {before.position: b"before", meanwhile.position: b"meanwhile"}
    expected[behind.position] = b"behind"
    assert contents(log) == expected
    log.close()
    with open_log(fs, rule=rule) as log:
        assert contents(log) == expected


@pytest.mark.parametrize("slow", ["fsync *1.seg", "fsync *MANIFEST.tmp", "sync_dir *"])
def test_an_append_reports_that_it_would_wait_for_a_roll(
    pool: ThreadPoolExecutor, slow: str
) -> None:
    """For the footer and for the manifest; a broker does so in a thread."""
    gate = Gate()
    fs = FaultyFileSystem(MemoryFileSystem(), [], Hook(gate.stop))
    log = open_log(fs, rule=PACKED)
    fill(log, 1)
    fs.add(Fault.parse(f"{slow} SLOW"))
    rolling = pool.submit(log.roll)
    gate.wait_until_reached()
    must_settle = log.must_settle()
    settling = pool.submit(log.settle)
    gate.open()
    settling.result(PATIENCE_S)
    rolling.result(PATIENCE_S)
    assert (must_settle, log.must_settle()) == (True, False)
    assert log.append(b"next").result() == pack(2, 0)


def test_an_append_that_has_to_roll_uses_the_roll_in_progress(
    pool: ThreadPoolExecutor,
) -> None:
    gate = Gate()
    log = open_log(hooked("fsync *2.seg", gate.stop), rule=PACKED)
    fill(log, 4)
    rolls = watch_rolls(log)
    rolling = pool.submit(log.roll)
    gate.wait_until_reached()
    late = pool.submit(lambda: log.append(bytes(700)).result())
    assert rolls.waited.acquire(timeout=PATIENCE_S)
    gate.open()
    rolling.result(PATIENCE_S)
    assert late.result(PATIENCE_S) == pack(2, 0)
    assert [segment.entries for segment in log.manifest.segments] == [4, 0]


def test_closing_waits_for_the_file_that_a_roll_is_making(pool: ThreadPoolExecutor) -> None:
    """Else it would be made in a log that another process has opened, over a segment of theirs."""
    gate = Gate()
    fs = hooked("fsync *2.seg", gate.stop)
    log = open_log(fs)
    fill(log, 1)
    rolling = pool.submit(log.roll)
    gate.wait_until_reached()
    closings = watch_rolls(log)
    closing = pool.submit(log.close)
    assert closings.waited.acquire(timeout=PATIENCE_S)
    gate.open()
    rolling.result(PATIENCE_S)
    closing.result(PATIENCE_S)
    with open_log(fs) as log:
        fill(log, 1)
        assert list(contents(log)) == [0, 1]


def test_a_roll_that_waited_makes_no_file_in_a_log_that_was_closed_meanwhile(
    pool: ThreadPoolExecutor,
) -> None:
    gate = Gate()

    def fail() -> None:
        gate.stop()
        raise OSError(errno.ENOSPC, "no space")

    faults = [Fault.parse("fsync *2.seg SLOW")]
    fs = FaultyFileSystem(MemoryFileSystem(), faults, Hook(fail), record=True)
    log = open_log(fs)
    fill(log, 1)
    first = pool.submit(log.roll)
    gate.wait_until_reached()
    waits = watch_rolls(log)
    closing = pool.submit(log.abandon)
    assert waits.waited.acquire(timeout=PATIENCE_S)
    second = pool.submit(log.roll)
    assert waits.waited.acquire(timeout=PATIENCE_S)
    before = len(fs.trace)
    gate.open()
    closing.result(PATIENCE_S)
    with pytest.raises(WriteFailed):
        first.result(PATIENCE_S)
    refused = isinstance(second.exception(PATIENCE_S), LogClosed)
    made = [line for line in fs.trace[before:] if line.startswith("open_append")]
    assert not (made and refused), "either it rolled before the log was closed, or not at all"


def test_abandon_waits_for_the_publish_in_progress_and_allows_no_other(
    pool: ThreadPoolExecutor,
) -> None:
    """Else it would replace the manifest of a process that has opened the log since."""
    gate = Gate()
    fs = hooked("rename *MANIFEST* nth=3", gate.stop)
    log = open_log(fs)
    fill(log, 1)
    log.roll()
    told = threading.Semaphore(0)
    publishing = pool.submit(log.publish, lambda manifest: manifest, "first")
    gate.wait_until_reached()
    log._publisher.lock = TellingLock(log._publisher.lock, told)  # type: ignore[assignment]
    waiting = pool.submit(log.publish, lambda manifest: manifest, "second")
    assert told.acquire(timeout=PATIENCE_S)
    closing = pool.submit(log.abandon)
    closing.add_done_callback(lambda _: told.release())
    assert told.acquire(timeout=PATIENCE_S)
    assert not closing.done()
    gate.open()
    closing.result(PATIENCE_S)
    generation = publishing.result(PATIENCE_S).generation
    with suppress(LogClosed):
        generation = waiting.result(PATIENCE_S).generation
    assert read_manifest(fs, DIRECTORY).generation == generation
    with pytest.raises(LogClosed):
        log.publish(lambda manifest: manifest, "third")


def test_no_file_is_deleted_after_the_log_was_closed(pool: ThreadPoolExecutor) -> None:
    """Its name may be that of a segment of a new log in the same place."""
    gate = Gate()
    fs = MemoryFileSystem()
    log = open_log(fs)
    fill(log, 1)
    log.roll()
    log.drop_head(before=log.next_position)
    (retired,) = log.manifest.retired
    reclaiming = pool.submit(log.reclaim, lambda _: gate.stop())
    gate.wait_until_reached()
    log.close()
    gate.open()
    with pytest.raises(LogClosed):
        reclaiming.result(PATIENCE_S)
    assert fs.exists(f"{DIRECTORY}/{retired.name}")


def test_abandoning_waits_for_an_fsync_that_needs_the_file(pool: ThreadPoolExecutor) -> None:
    gate = Gate()
    log = open_log(hooked("fdatasync *.seg", gate.stop))
    pending = log.append(b"a")
    syncing = pool.submit(log.sync)
    gate.wait_until_reached()
    waiting = watch_rolls(log)
    abandoning = pool.submit(log.abandon)
    assert waiting.waited.acquire(timeout=PATIENCE_S)
    gate.open()
    abandoning.result(PATIENCE_S)
    syncing.result(PATIENCE_S)
    assert pending.result() == 0
    assert log.closed


@pytest.mark.parametrize("operation", ["open_append", "write", "fsync"])
def test_a_roll_that_cannot_make_the_next_file_leaves_the_log_as_it_was(operation: str) -> None:
    fs = FaultyFileSystem(MemoryFileSystem(), [Fault(operation, "*2.seg", kind="ENOSPC")])
    log = open_log(fs)
    fill(log, 2)
    with pytest.raises(WriteFailed, match=r"2\.seg"):
        log.roll()
    fill(log, 1)
    log.roll()
    fill(log, 1)
    assert [segment.entries for segment in log.manifest.segments] == [3, 0]
    assert list(contents(log)) == [0, 1, 2, 3]


def test_two_that_drop_the_head_do_not_drop_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    log = open_log(MemoryFileSystem())
    fill(log, 21)
    publish = log.publish

    def after_another(edit: Callable[[Manifest], Manifest], why: str) -> Manifest:
        monkeypatch.undo()
        log.drop_head(7)
        return publish(edit, why)

    monkeypatch.setattr(log, "publish", after_another)
    log.drop_head(7)
    assert list(contents(log)) == list(range(7, 21))


def test_a_reader_that_starts_while_pins_are_listed_keeps_its_files() -> None:
    with ExitStack() as stack:
        readers: list[Snapshot] = []

        def read_then_drop() -> None:
            readers.append(stack.enter_context(log.snapshot("late")))
            log.drop_head(14)

        fs = FaultyFileSystem(MemoryFileSystem(), clock=Hook(read_then_drop))
        log = open_log(fs)
        fill(log, 21)
        log.drop_head(7)
        fs.add(Fault("list", DIRECTORY, kind="SLOW"))
        assert log.reclaim().files == 1
        assert [entry.position for entry in readers[0].read()] == list(range(7, 21))
    assert log.reclaim().files == 1


def test_many_threads_append_roll_read_and_reclaim(pool: ThreadPoolExecutor) -> None:
    log = open_log(MemoryFileSystem())
    done = threading.Event()

    def write(number: int) -> list[int]:
        return [log.append(b"%d/%d" % (number, n) * 10).result() for n in range(150)]

    def read() -> int:
        seen = -1
        while not done.is_set():
            with log.snapshot() as snapshot:
                positions = [entry.position for entry in snapshot.read(seen + 1)]
            assert positions == list(range(seen + 1, seen + 1 + len(positions)))
            seen += len(positions)
        return seen

    reading = pool.submit(read)
    writing = [pool.submit(write, number) for number in range(3)]
    try:
        positions = sorted(p for future in writing for p in future.result(PATIENCE_S))
    finally:
        done.set()
    assert positions == list(range(450))
    assert reading.result(PATIENCE_S) <= 449
    assert list(contents(log)) == positions
