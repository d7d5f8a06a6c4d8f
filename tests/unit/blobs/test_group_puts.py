"""Concurrent puts: they are written together, and each gets its own outcome."""

from __future__ import annotations

import signal
import threading
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import pytest

from lithify.blobs.errors import BlobExists, BlobStoreFull
from lithify.blobs.group_puts import EARLY_MIN
from lithify.clock import ManualClock
from lithify.errors import LogClosed, WriteFailed
from lithify.fs import MemoryFileSystem
from lithify.testing.faulty_fs import Fault, FaultyFileSystem
from tests.patience import PROCESS_S_MAX
from tests.unit.blobs.life import content_of
from tests.unit.blobs.test_store import SEGMENT, create, read
from tests.unit.log.helpers import Gate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from lithify.blobs.content.reader import BlobInfo
    from lithify.blobs.store import BlobStore


class Told(deque[Any]):
    """Those that wait; it tells when one has come."""

    def __init__(self) -> None:
        super().__init__()
        self._came = threading.Semaphore(0)

    def append(self, waiting: Any) -> None:
        super().append(waiting)
        self._came.release()

    def wait(self, count: int = 1) -> None:
        for _ in range(count):
            assert self._came.acquire(timeout=PROCESS_S_MAX)


@contextmanager
def gathering(
    store: BlobStore,
) -> Iterator[Callable[[str, bytes], Future[BlobInfo]]]:
    """Put in threads, one after the other; nothing is written before the block ends."""
    told = store._operations._puts._waiting = Told()
    with ThreadPoolExecutor(32) as pool, store.writer.lock:

        def put(blob_id: str, content: bytes) -> Future[BlobInfo]:
            future = pool.submit(store.put, content, service="s", blob_id=blob_id)
            told.wait()
            return future

        yield put


def faulty_store() -> tuple[BlobStore, FaultyFileSystem]:
    fs = FaultyFileSystem(MemoryFileSystem(), record=True)
    return create(fs), fs


def test_concurrent_puts_share_one_write_and_one_fsync() -> None:
    store, fs = faulty_store()
    before = len(fs.trace)
    with gathering(store) as put:
        puts = {f"blob {n}": put(f"blob {n}", content_of(n, 1000 * n)) for n in range(10)}
    positions = [future.result().position for future in puts.values()]
    assert positions == list(range(positions[0], positions[0] + 10))
    assert [line.split()[0] for line in fs.trace[before:]] == ["writev", "fdatasync"]
    for number, blob_id in enumerate(puts):
        assert read(store, blob_id) == content_of(number, 1000 * number)
    assert [info.blob_id for info in store.list()] == list(puts)


def test_each_put_of_a_group_is_accepted_or_refused_separately() -> None:
    store = create()
    store.put(b"", service="s", blob_id="taken")
    with gathering(store) as put:
        first = put("new", b"first")
        second = put("new", b"second")
        taken = put("taken", b"")
        last = put("last", b"last")
    assert last.result().position == first.result().position + 1
    assert isinstance(second.exception(), BlobExists)
    assert isinstance(taken.exception(), BlobExists)
    assert read(store, "new") == b"first"
    assert read(store, "last") == b"last"


def test_a_group_may_span_segments_but_no_record_does() -> None:
    store = create()
    with gathering(store) as put:
        futures = [put(str(number), content_of(number, 60_000)) for number in range(12)]
    segments = store.log.manifest.segments
    assert len(segments) == 3
    assert all(segment.file_bytes <= SEGMENT for segment in segments)
    for number, future in enumerate(futures):
        assert future.result().blob_id == str(number)
        assert read(store, str(number)) == content_of(number, 60_000)


def test_a_full_store_accepts_as_many_of_a_group_as_one_by_one() -> None:
    one_by_one, together = create(segments=2), create(segments=2)
    taken = 0
    with suppress(BlobStoreFull):
        for taken in range(20):  # noqa: B007  (how many there were is what counts)
            one_by_one.put(bytes(50_000), service="s")
    with gathering(together) as put:
        futures = [put(str(number), bytes(50_000)) for number in range(20)]
    errors = [future.exception() for future in futures]
    assert errors[:taken] == [None] * taken
    assert all(isinstance(error, BlobStoreFull) for error in errors[taken:])
    assert len(errors) > taken


def test_a_failed_fsync_fails_the_whole_group_and_does_not_delay_the_next() -> None:
    store, fs = faulty_store()
    fs.add(Fault("fdatasync", nth=1, kind="EIO"))
    with gathering(store) as put:
        lost = [put(str(number), b"lost") for number in range(5)]
    assert all(isinstance(future.exception(), WriteFailed) for future in lost)
    with gathering(store) as put:
        found = [put(str(number), b"found") for number in range(5)]
    assert all(future.exception() is None for future in found)
    assert {read(store, str(number)) for number in range(5)} == {b"found"}


def test_a_failed_write_fails_one_put_and_the_others_are_retried() -> None:
    store, fs = faulty_store()
    fs.add(Fault("writev", nth=1, kind="ENOSPC"))
    with gathering(store) as put:
        first, *others = [put(str(number), b"x") for number in range(5)]
    assert isinstance(first.exception(), WriteFailed)
    assert all(future.exception() is None for future in others)
    assert [info.blob_id for info in store.list()] == ["1", "2", "3", "4"]


def test_waiting_puts_fail_when_the_store_is_closed() -> None:
    store = create()
    with gathering(store) as put:
        futures = [put(str(number), b"x") for number in range(5)]
        store.log.abandon()
    assert all(isinstance(future.exception(), LogClosed) for future in futures)


# --- one group is written while another is synced -----------------------------------------------


class Halts(ManualClock):
    """For a `FaultyFileSystem`: a SLOW rule stops at the gate that its seconds count."""

    def __init__(self, *gates: Gate) -> None:
        super().__init__()
        self._gates = gates

    def sleep(self, seconds: float) -> None:
        self._gates[int(seconds)].stop()


class Held:
    """A store whose first fsync is held up, and whose second write as well."""

    def __init__(self, *faults: Fault) -> None:
        self.sync, self.write = Gate(), Gate()
        self.fs = FaultyFileSystem(
            MemoryFileSystem(), clock=Halts(self.sync, self.write), record=True
        )
        self.store = create(self.fs)
        self._before = len(self.fs.trace)
        self.fs.add(Fault("fdatasync", nth=1, kind="SLOW", seconds=0))
        self.fs.add(Fault("writev", nth=2, kind="SLOW", seconds=1))
        for fault in faults:
            self.fs.add(fault)
        self.puts = self.store._operations._puts
        self.told = self.puts._waiting = Told()

    @property
    def calls(self) -> list[str]:
        return [line.split()[0] for line in self.fs.trace[self._before :]]

    def put(self, blob_id: str) -> BlobInfo:
        return self.store.put(blob_id.encode(), service="s", blob_id=blob_id)


def test_a_group_is_written_during_the_fsync_of_another() -> None:
    held = Held()
    with ThreadPoolExecutor(32) as pool:
        futures = [pool.submit(held.put, "first")]
        held.sync.wait_until_reached()
        futures += [pool.submit(held.put, str(number)) for number in range(EARLY_MIN)]
        held.write.wait_until_reached()
        assert held.calls == ["writev", "fdatasync", "writev"]
        held.write.open()
        assert list(held.store.list()) == []
        held.sync.open()
        infos = [future.result() for future in futures]
    assert held.calls == ["writev", "fdatasync", "writev", "fdatasync"]
    first = infos[0].position
    assert {info.position for info in infos} == set(range(first, first + 1 + EARLY_MIN))
    assert all(read(held.store, info.blob_id) == info.blob_id.encode() for info in infos)


def test_a_few_wait_for_the_end_of_the_fsync() -> None:
    held = Held()
    held.write.open()
    with ThreadPoolExecutor(32) as pool:
        futures = [pool.submit(held.put, "first")]
        held.sync.wait_until_reached()
        futures += [pool.submit(held.put, str(number)) for number in range(EARLY_MIN - 1)]
        held.told.wait(EARLY_MIN)
        with held.puts._lock:
            assert not held.puts._led
        held.sync.open()
        assert len({future.result().position for future in futures}) == EARLY_MIN
    assert held.calls == ["writev", "fdatasync", "writev", "fdatasync"]


def test_a_failed_fsync_fails_the_group_written_during_it() -> None:
    held = Held(Fault("fdatasync", nth=1, kind="EIO"))
    with ThreadPoolExecutor(32) as pool:
        futures = [pool.submit(held.put, "first")]
        held.sync.wait_until_reached()
        futures += [pool.submit(held.put, str(number)) for number in range(EARLY_MIN)]
        held.write.wait_until_reached()
        held.write.open()
        # Before the fsync fails they are written, all but for the answer.
        with held.store.writer.lock:
            held.sync.open()
        assert all(isinstance(future.exception(), WriteFailed) for future in futures)
    assert list(held.store.list()) == []
    for blob_id in ("first", "0"):
        assert read(held.store, held.put(blob_id).blob_id) == blob_id.encode()


def test_acknowledged_puts_survive_any_number_of_failed_fsyncs() -> None:
    fs = FaultyFileSystem(MemoryFileSystem())
    store = create(fs)
    for nth in range(3, 60, 7):
        fs.add(Fault("fdatasync", nth=nth, kind="EIO"))

    def put(writer: int) -> list[BlobInfo]:
        infos = []
        for number in range(20):
            with suppress(WriteFailed):
                blob_id = f"{writer} {number}"
                infos.append(store.put(blob_id.encode(), service="s", blob_id=blob_id))
        return infos

    with ThreadPoolExecutor(24) as pool:
        infos = [info for some in pool.map(put, range(24)) for info in some]
    assert 0 < len(infos) < 24 * 20
    assert len({info.position for info in infos}) == len(infos)
    assert {info.blob_id for info in store.list()} == {info.blob_id for info in infos}
    assert all(read(store, info.blob_id) == info.blob_id.encode() for info in infos)


# --- interrupts ----------------------------------------------------------------------------------


class Interrupt(BaseException):
    """Not an `Exception`, as that of Ctrl-C."""


@contextmanager
def interrupted() -> Iterator[Callable[[], None]]:
    """Gives what interrupts the main thread, from any other: once, however often it is called."""
    done = False

    def handler(*_: object) -> None:
        nonlocal done
        if not done:
            done = True
            raise Interrupt

    before = signal.signal(signal.SIGUSR1, handler)
    main = threading.main_thread().ident
    assert main is not None
    try:
        yield lambda: signal.pthread_kill(main, signal.SIGUSR1)
    finally:
        signal.signal(signal.SIGUSR1, before)


@pytest.mark.parametrize("comes", [0, 1])
def test_an_interrupted_leader_of_a_group_of_puts_passes_the_lead_on(comes: int) -> None:
    """The main thread is the first, which leads, or the second, which sleeps."""
    store = create()
    told = store._operations._puts._waiting = Told()
    locked, begun = threading.Event(), threading.Event()

    with ThreadPoolExecutor(8) as pool, interrupted() as interrupt:

        def put(number: int) -> BlobInfo:
            return store.put(b"x", service="s", blob_id=f"other {number}")

        def keep_back() -> list[Future[BlobInfo]]:
            with store.writer.lock:
                others = [pool.submit(put, n) for n in range(comes)]
                told.wait(comes)
                locked.set()
                told.wait()
                others += [pool.submit(put, n) for n in range(comes, 4)]
                told.wait(4 - comes)
                # A signal just before a thread falls asleep does not wake it.
                while not begun.wait(0.02):
                    interrupt()
            return others

        kept = pool.submit(keep_back)
        locked.wait()
        with pytest.raises(Interrupt):
            store.put(b"x", service="s", blob_id="mine")
        begun.set()
        assert all(future.result().position >= 0 for future in kept.result())
    store.put(b"x", service="s", blob_id="after")
    assert {info.blob_id for info in store.list()} == {*(f"other {n}" for n in range(4)), "after"}


def test_the_others_of_a_group_are_woken_past_one_that_was_interrupted() -> None:
    """The main thread sleeps, second of five, while their fsync is in progress."""
    held = Held()
    locked, begun = threading.Event(), threading.Event()

    with ThreadPoolExecutor(8) as pool, interrupted() as interrupt:

        def hold_up() -> list[Future[BlobInfo]]:
            with held.store.writer.lock:
                others = [pool.submit(held.put, "first")]
                held.told.wait()
                locked.set()
                held.told.wait()
                others += [pool.submit(held.put, str(number)) for number in range(3)]
                held.told.wait(3)
            held.sync.wait_until_reached()
            while not begun.wait(0.02):
                interrupt()
            held.sync.open()
            return others

        kept = pool.submit(hold_up)
        locked.wait()
        with pytest.raises(Interrupt):
            held.put("mine")
        begun.set()
        assert len({future.result().position for future in kept.result()}) == 4
    assert held.calls == ["writev", "fdatasync"]
    assert not held.puts._inside


def test_a_leader_is_interrupted_after_the_fsync_of_the_previous_group() -> None:
    """Its group is told at once, and the next one is led."""
    held = Held()
    begun = threading.Event()

    with ThreadPoolExecutor(16) as pool, interrupted() as interrupt:
        first = pool.submit(held.put, "first")
        held.sync.wait_until_reached()
        held.told.wait()

        def come() -> list[Future[BlobInfo]]:
            held.told.wait()
            others = [pool.submit(held.put, str(number)) for number in range(EARLY_MIN - 1)]
            held.write.wait_until_reached()
            held.write.open()
            while not begun.wait(0.02):
                interrupt()
            return others

        coming = pool.submit(come)
        with pytest.raises(Interrupt):
            held.put("mine")
        begun.set()
        for future in coming.result():
            assert isinstance(future.exception(), WriteFailed)
        assert not first.done()
        held.sync.open()
        assert first.result().position >= 0
    assert read(held.store, held.put("after").blob_id) == b"after"
    assert not held.puts._inside
