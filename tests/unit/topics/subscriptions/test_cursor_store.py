"""Subscriptions survive a restart, and their log stays short."""

from __future__ import annotations

import random
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from lithify.clock import ManualClock
from lithify.errors import DamagedFile, InvalidInput, InvalidSetting, LogClosed, WriteFailed
from lithify.events import ignore_events
from lithify.fs import MemoryFileSystem
from lithify.log.log import Log
from lithify.log.segments.frame import HEADER_BYTES
from lithify.log.verify import verify_log
from lithify.positions import pack
from lithify.settings import LogSettings
from lithify.testing.faulty_fs import MUTATING, Fault, FaultyFileSystem
from lithify.topics.subscriptions.cursor import Cursor
from lithify.topics.subscriptions.cursor_changes import Acked, AckedBatch, AckedUpTo, Filled, Reset
from lithify.topics.subscriptions.cursor_store import CursorSettings, CursorStore
from tests.unit.log.helpers import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Callable

    from lithify.fs import FileSystem

DIRECTORY = "/data/orders/cursors"
SHORT = CursorSettings(checkpoint_bytes_min=1024, checkpoint_factor=2)

State = dict[str, tuple[dict[str, str], bytes]]


def open_store(
    fs: FileSystem, settings: CursorSettings | None = None, clock: ManualClock | None = None
) -> CursorStore:
    return CursorStore.open(
        fs, DIRECTORY, clock=clock or ManualClock(), events=ignore_events, settings=settings
    )


def state(store: CursorStore) -> State:
    return {name: (store.properties(name), store.get(name).to_bytes()) for name in store.names()}


def state_on(fs: FileSystem) -> State:
    store = open_store(fs)
    found = state(store)
    store.close()
    return found


def log_bytes(store: CursorStore) -> int:
    return sum(s.file_bytes for s in store.log.manifest.segments[:-1]) + store.log.active_bytes


def busy_store(fs: FileSystem, settings: CursorSettings | None = None) -> CursorStore:
    """Two subscriptions with every kind of change."""
    store = open_store(fs, settings)
    store.create("audit", Cursor(-1), {"team": "risk"})
    store.create("mail", Cursor(pack(1, 4)), {})
    for position in (0, 3, 4, 9):
        store.ack("audit", Acked(position))
    store.ack("audit", AckedUpTo(1))
    store.ack("audit", AckedBatch(6, 0b1100, 4))
    store.ack("audit", AckedBatch(5, 0b1100, 4, masked=0b1100))
    store.ack("mail", Acked(pack(1, 5)))
    store.ack("mail", Filled(pack(1, 6), pack(2, 0)))
    store.ack("mail", AckedUpTo(pack(2, 7)))
    store.ack("mail", Reset(pack(2, 3)))
    store.ack("mail", Acked(pack(2, 5)))
    return store


# --- subscriptions --------------------------------------------------------------------------


def test_subscriptions_are_there_again_after_a_restart() -> None:
    fs = MemoryFileSystem()
    store = busy_store(fs)
    before = state(store)
    store.close()

    store = open_store(fs)
    assert state(store) == before
    assert store.names() == ["audit", "mail"]
    assert store.properties("audit") == {"team": "risk"}
    audit, mail = store.get("audit"), store.get("mail")
    assert audit.mark_delete == 1
    assert list(audit.acked_ranges()) == [(3, 6), (9, 10)]
    assert audit.remaining_of(6) == 0b1100
    assert mail.mark_delete == pack(2, 2)
    assert list(mail.acked_ranges()) == [(pack(2, 5), pack(2, 6))]


def test_a_deleted_subscription_stays_deleted_and_its_name_is_free() -> None:
    fs = MemoryFileSystem()
    store = busy_store(fs)
    store.delete("audit")
    store.close()

    store = open_store(fs)
    assert store.names() == ["mail"]
    store.create("audit", Cursor(70), {})
    store.ack("audit", Acked(71))
    store.checkpoint()
    store.delete("mail")
    store.close()

    store = open_store(fs)
    assert store.names() == ["audit"]
    assert store.get("audit").mark_delete == 71
    assert store.properties("audit") == {}


def test_missing_and_existing_subscriptions_are_named() -> None:
    store = busy_store(MemoryFileSystem())
    for call in (store.get, store.properties, store.delete, lambda n: store.ack(n, Acked(1))):
        with pytest.raises(InvalidInput, match=f"no subscription 'bills' in {DIRECTORY}"):
            call("bills")
    before = state(store)
    with pytest.raises(InvalidInput, match="subscription 'mail' exists"):
        store.create("mail", Cursor(-1), {})

    assert state(store) == before


def test_any_name_and_any_property_is_kept() -> None:
    fs = MemoryFileSystem()
    store = open_store(fs)
    store.create('"\\\n\0 Ünï/…', Cursor(-1), {"": "\ud800", "ключ": ""})
    before = state(store)
    store.close()

    assert state_on(fs) == before


def test_gaps_are_acknowledged_again_after_a_restart() -> None:
    def following(position: int) -> int:
        return max(position, 10)

    fs = MemoryFileSystem()
    store = open_store(fs)
    store.create("audit", Cursor(-1), {})
    store.take_gaps("audit", following)
    assert store.get("audit").mark_delete == 9
    store.ack("audit", Acked(10))
    store.close()

    store = open_store(fs)
    store.take_gaps("audit", following)
    assert store.get("audit").mark_delete == 10


def test_settings_outside_their_limits_are_refused() -> None:
    with pytest.raises(InvalidSetting, match="checkpoint_factor"):
        CursorSettings(checkpoint_factor=1)
    with pytest.raises(InvalidSetting, match="checkpoint_bytes_min"):
        CursorSettings(checkpoint_bytes_min=1)
    with pytest.raises(InvalidSetting, match="sync_interval_ms"):
        CursorSettings(sync_interval_ms=0)


# --- what survives --------------------------------------------------------------------------


def test_a_killed_process_loses_no_acknowledgement() -> None:
    fs = MemoryFileSystem()
    store = busy_store(fs)

    assert state_on(fs.kill_clone()) == state(store)


def test_after_a_sync_a_power_cut_loses_no_acknowledgement() -> None:
    fs = MemoryFileSystem()
    store = busy_store(fs)
    store.sync()

    for seed in range(20):
        assert state_on(fs.crash_clone(random.Random(seed))) == state(store)


def test_the_interval_of_maintain_makes_acknowledgements_durable() -> None:
    fs, clock = MemoryFileSystem(), ManualClock()
    store = open_store(fs, clock=clock)
    store.create("audit", Cursor(-1), {})
    store.ack("audit", AckedUpTo(1000))
    clock.advance(0.3)
    store.maintain()

    for seed in range(20):
        assert state_on(fs.crash_clone(random.Random(seed))) == state(store)


def test_creating_and_deleting_is_durable_at_once() -> None:
    fs = MemoryFileSystem()
    store = open_store(fs)
    changes: list[Callable[[], None]] = [
        lambda: store.create("audit", Cursor(5), {"a": "b"}),
        lambda: store.create("mail", Cursor(6), {}),
        lambda: store.delete("audit"),
    ]
    for change in changes:
        change()
        for seed in range(10):
            assert state_on(fs.crash_clone(random.Random(seed))) == state(store)


def test_an_acknowledgement_costs_a_few_bytes_and_no_fsync() -> None:
    fs = FaultyFileSystem(MemoryFileSystem(), record=True)
    store = open_store(fs)
    store.create("audit", Cursor(-1), {})
    written = store.log.active_bytes
    fs.trace.clear()
    store.ack("audit", Acked(pack(1, 7)))
    store.ack("audit", AckedBatch(pack(1, 9), 0b1, 10))

    assert [line.split()[0] for line in fs.trace] == ["writev", "writev"]
    assert store.log.active_bytes - written == (HEADER_BYTES + 8) + (HEADER_BYTES + 14)


def test_a_refused_write_did_not_happen() -> None:
    fs = FaultyFileSystem(MemoryFileSystem())
    store = busy_store(fs)
    before = state(store)
    fs.add(Fault("writev", count=3, kind="SHORT"))
    with pytest.raises(WriteFailed):
        store.ack("audit", Acked(2))
    with pytest.raises(WriteFailed):
        store.create("bills", Cursor(-1), {})
    with pytest.raises(WriteFailed):
        store.delete("mail")
    assert state(store) == before

    store.ack("audit", Acked(2))
    assert store.get("audit").mark_delete == 5
    expected = state(store)
    store.close()
    assert state_on(fs.inner) == expected


def test_a_closed_store_refuses_changes() -> None:
    store = busy_store(MemoryFileSystem())
    store.close()
    store.close()
    before = state(store)
    with pytest.raises(LogClosed):
        store.ack("audit", Acked(2))

    assert state(store) == before


# --- checkpoints ----------------------------------------------------------------------------


def test_a_checkpoint_replaces_the_log_by_snapshots() -> None:
    fs = MemoryFileSystem()
    store = busy_store(fs)
    for position in range(10, 1000):
        store.ack("audit", Acked(position))
    before = state(store)
    assert log_bytes(store) > 30_000

    store.checkpoint()
    assert log_bytes(store) < 1000
    assert len([name for name in fs.list(DIRECTORY) if name.endswith(".seg")]) == 1
    assert state(store) == before
    for seed in range(10):
        assert state_on(fs.crash_clone(random.Random(seed))) == before


def test_maintain_checkpoints_a_log_that_has_grown_too_long() -> None:
    store = open_store(MemoryFileSystem(), CursorSettings(checkpoint_bytes_min=4096))
    store.create("audit", Cursor(-1), {})
    position = 0
    for _ in range(5):
        while log_bytes(store) <= 4096:
            generation = store.log.manifest.generation
            store.ack("audit", Acked(position))
            position += 1
            assert store.log.manifest.generation == generation, "no checkpoint delays an ack"
        store.maintain()
        assert log_bytes(store) < 500
        store.maintain()
        assert store.log.manifest.segments[-1].first_position == store.log.last_position, (
            "a short log stays as it is"
        )


def test_long_snapshots_are_written_less_often() -> None:
    fs = MemoryFileSystem()
    store = open_store(fs, SHORT)
    scattered = Cursor(-1)
    for position in range(2, 20_000, 2):
        scattered.ack(position)
    size = len(scattered.to_bytes())
    assert size > 15 * SHORT.checkpoint_bytes_min
    store.create("audit", scattered, {})

    generation = store.log.manifest.generation
    store.maintain()
    assert store.log.manifest.generation == generation
    store.close()
    store = open_store(fs, SHORT)
    generation = store.log.manifest.generation
    while log_bytes(store) <= 2 * size:
        store.maintain()
        store.ack("audit", Acked(40_000))
    assert store.log.manifest.generation == generation
    for _ in range(10):
        store.ack("audit", Acked(40_000))
    store.maintain()
    assert store.log.manifest.generation > generation
    assert log_bytes(store) < 1.1 * size


def test_a_failed_checkpoint_is_repeated_later() -> None:
    fs = FaultyFileSystem(MemoryFileSystem(), record=True)
    store = busy_store(fs, SHORT)
    fs.trace.clear()
    store.checkpoint()
    operations = sum(line.split()[0] in MUTATING for line in fs.trace)
    assert operations > 10

    for nth in range(1, operations + 1):
        fs = FaultyFileSystem(MemoryFileSystem())
        store = busy_store(fs, SHORT)
        before = state(store)
        fs.add(Fault("mutating", nth=nth, kind="EIO"))
        with pytest.raises(WriteFailed):
            store.checkpoint()
        store.ack("mail", Acked(pack(2, 3)))
        assert state(store) != before
        store.checkpoint()
        assert log_bytes(store) < 700
        expected = state(store)
        store.close()
        assert state_on(fs.inner) == expected
        assert verify_log(fs.inner, DIRECTORY).damage is None


def test_acknowledgements_continue_while_checkpoints_run() -> None:
    fs = MemoryFileSystem()
    store = busy_store(fs)
    ended = threading.Event()

    def ack(name: str, change: Acked | AckedUpTo) -> None:
        while not store.ack(name, change):
            if (prepare := store.preparation()) is not None:
                prepare()

    def acknowledge() -> None:
        for position in range(20, 4000, 2):
            ack("audit", Acked(position))
            ack("mail", AckedUpTo(pack(3, position)))
            if position % 100 == 0:
                store.create(f"s{position}", Cursor(position), {})
                ack(f"s{position}", Acked(position + 5))
                if position % 200 == 0:
                    store.delete(f"s{position}")
        ended.set()

    thread = threading.Thread(target=acknowledge)
    thread.start()
    clones = []
    while not ended.is_set():
        store.checkpoint()
        clones.append(fs.kill_clone())
    thread.join()

    assert len(store.names()) == 2 + 20
    assert state_on(fs.kill_clone()) == state(store)
    for clone in clones[:: 1 + len(clones) // 20]:
        state_on(clone)


def test_a_subscription_deleted_during_a_checkpoint_stays_deleted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fs = MemoryFileSystem()
    store = busy_store(fs)
    list_names = store.names

    def listed_then_deleted() -> list[str]:
        names = list_names()
        store.delete("audit")
        return names

    with monkeypatch.context() as patch:
        # The moment at which another thread would have to come.
        patch.setattr(store, "names", listed_then_deleted)
        store.checkpoint()
    assert store.names() == ["mail"]
    store.close()

    assert list(state_on(fs)) == ["mail"]


def test_changes_before_a_snapshot_are_in_it_and_changes_without_one_are_damage() -> None:
    fs = MemoryFileSystem()
    store = busy_store(fs)
    store.checkpoint()
    expected = state(store)
    store.close()
    log = Log.open(fs, DIRECTORY, kind="cursor", clock=ManualClock())
    with log.snapshot() as snapshot:
        snapshots = list(snapshot.read())
    log.roll()
    before = log.next_position
    for entry in snapshots:
        log.append(Acked(3).to_bytes(), flags=Acked.kind << 8, tag=entry.tag)
    log.drop_head(before)
    log.sync()
    lost = fs.kill_clone()
    for entry in snapshots:
        log.append(entry.body, flags=entry.flags, tag=entry.tag)
    log.close()

    assert state_on(fs) == expected
    for _ in range(2):  # The lock is released.
        with pytest.raises(DamagedFile, match=r"changes of subscriptions \[1, 2\]"):
            open_store(lost)


@pytest.mark.parametrize(
    ("kind", "body", "text"),
    [
        (9, b"", "unknown kind 9"),
        (Acked.kind, b"short", "kind 3"),
        (1, b"", "error"),
        (1, b"\2\0\0\0[]", "header of a cursor"),
        (1, b"\2\0\0\0[]" + Cursor(3).to_bytes(), "TypeError"),
        (1, b"\2\0\0\0{}" + Cursor(3).to_bytes(), "KeyError"),
        (1, b"\2\0\0\0{]" + Cursor(3).to_bytes(), "JSONDecodeError"),
    ],
)
def test_an_invalid_record_is_damage(kind: int, body: bytes, text: str) -> None:
    fs = MemoryFileSystem()
    busy_store(fs).close()
    log = Log.open(fs, DIRECTORY, kind="cursor", clock=ManualClock())
    log.append(body, flags=kind << 8, tag=1)
    log.close()

    with pytest.raises(DamagedFile, match=text):
        open_store(fs)


class SlowCursor(Cursor):
    """One that takes long to write down."""

    __slots__ = ("begun", "go")

    def __init__(self, mark_delete: int) -> None:
        super().__init__(mark_delete)
        self.begun, self.go = threading.Event(), threading.Event()

    def to_bytes(self) -> bytes:
        self.begun.set()
        assert self.go.wait(PATIENCE_S)
        return super().to_bytes()


def test_an_acknowledgement_does_not_wait_for_a_cursor_that_is_written_down() -> None:
    fs = MemoryFileSystem()
    store = busy_store(fs)
    before = state(store)["audit"]
    slow = SlowCursor(-1)
    thread = threading.Thread(target=store.create, args=("slow", slow, {}))
    thread.start()
    assert slow.begun.wait(PATIENCE_S)
    assert not store.ack("audit", Acked(50))
    store.take_gaps("audit", lambda position: position + 1000)
    prepare = store.preparation()
    assert prepare is not None
    slow.go.set()
    thread.join()
    prepare()
    assert store.preparation() is None
    assert state(store)["audit"] == before, "nothing has happened"
    assert store.ack("audit", Acked(50))
    assert state_on(fs.kill_clone()) == state(store)


class HeldFileSystem(FaultyFileSystem):
    """One in which a new segment's directory is made durable only when that is allowed."""

    def __init__(self) -> None:
        super().__init__(MemoryFileSystem())
        self.begun, self.go = threading.Event(), threading.Event()
        self.go.set()

    def sync_dir(self, path: str) -> None:
        if not self.go.is_set():
            self.begun.set()
            assert self.go.wait(PATIENCE_S)
        super().sync_dir(path)


def test_the_cursor_log_is_not_rolled_while_the_lock_is_needed() -> None:
    fs = HeldFileSystem()
    # Smaller than the room that is left for acknowledgements: whatever is written rolls it first.
    settings = LogSettings(segment_bytes_max=4096)
    log = Log.open(
        fs, DIRECTORY, kind="cursor", settings=settings, clock=ManualClock(), events=ignore_events
    )
    store = CursorStore(log, SHORT)
    store.create("audit", Cursor(-1), {})
    fs.go.clear()
    thread = threading.Thread(target=store.create, args=("mail", Cursor(-1), {}))
    thread.start()
    assert fs.begun.wait(PATIENCE_S)
    with ThreadPoolExecutor(1) as pool:
        names = pool.submit(store.names)
        try:
            assert names.result(PATIENCE_S) == ["audit"]
        finally:
            fs.go.set()
    thread.join()
    assert store.names() == ["audit", "mail"]
    store.close()
