"""The write-ahead log: what it acknowledges, what it refuses, what is there after a crash."""

from __future__ import annotations

import threading
from random import Random
from typing import TYPE_CHECKING

import pytest
import structlog

from lithify.clock import ManualClock
from lithify.errors import DamagedFile
from lithify.events import WriteRefused
from lithify.fs import MemoryFileSystem, read_file
from lithify.live_set import LiveSet
from lithify.raft.core.values import HardState
from lithify.raft.entry import Entry
from lithify.raft.storage.file_names import wal_name
from lithify.raft.storage.live_state import LiveState, LiveStates
from lithify.raft.storage.manifest import RaftManifest
from lithify.raft.storage.wal import format as wal_format
from lithify.raft.storage.wal.format import WalTail, parse_batches
from lithify.raft.storage.wal.wal import Proved, Resend, Rolled, StateSaved, Wal, Written
from lithify.testing.faulty_fs import Fault, FaultyFileSystem
from tests.patience import PROCESS_S_MAX

if TYPE_CHECKING:
    from collections.abc import Callable


def entries(*indexes: int, term: int = 1) -> list[Entry]:
    return [Entry(index, term, b"%d/%d" % (index, term)) for index in indexes]


@pytest.fixture(autouse=True)
def records_go_to_logging() -> None:
    """Whatever another test in this process has configured."""
    structlog.reset_defaults()


def reopened(fs: MemoryFileSystem, live: LiveStates | None = None) -> dict[str, list[str]]:
    found = Wal(fs, "wal", live or LiveStates()).recover({})
    return {
        group: [entry.payload.decode() for entry in each.entries.values()]
        for group, each in found.items()
    }


def test_one_round_makes_the_entries_of_all_groups_durable() -> None:
    fs = MemoryFileSystem()
    wal = Wal(fs, "wal", LiveStates())
    wal.append("a", entries(1, 2), 0)
    wal.append("b", entries(1), 0)
    wal.append("a", entries(3, term=2), 2)
    wal.save("a", HardState(2, "n1", 1))
    assert wal.flush() == [
        StateSaved("a", HardState(2, "n1", 1)),
        Written("a", 1, 1, 2, 0, 1),
        Written("b", 1, 1, 1, 0, 1),
        Written("a", 2, 3, 3, 2, 1),
    ]
    assert reopened(fs.crash_clone(Random(1))) == {"a": ["1/1", "2/1", "3/2"], "b": ["1/1"]}
    assert Wal(fs, "wal", LiveStates()).recover({})["a"].state == HardState(2, "n1", 1)


def test_entries_written_together_are_reported_by_term_and_range() -> None:
    fs = MemoryFileSystem()
    wal = Wal(fs, "wal", LiveStates())
    wal.append("a", [*entries(1, 2), *entries(3, 4, term=2)], 0)
    wal.append("b", [*entries(3, 4, 7), *entries(8, term=2)], 0)
    assert wal.flush() == [
        Written("a", 1, 1, 2, 0, 1),
        Written("a", 2, 3, 4, 2, 1),
        Written("b", 1, 3, 4, 0, 1),
        Written("b", 1, 7, 7, 4, 1),
        Written("b", 2, 8, 8, 7, 1),
    ]


def test_nothing_is_there_after_a_crash_before_the_flush() -> None:
    fs = MemoryFileSystem()
    wal = Wal(fs, "wal", LiveStates())
    wal.append("a", entries(1), 0)
    assert reopened(fs.crash_clone(Random(1))) == {}
    assert wal.wait(0)
    wal.flush()
    assert not wal.wait(0)


def test_a_held_log_wakes_its_thread_when_it_is_released() -> None:
    wal = Wal(MemoryFileSystem(), "wal", LiveStates())
    woken: list[bool] = []
    thread = threading.Thread(target=lambda: woken.append(wal.wait(PROCESS_S_MAX)))
    wal.hold()
    thread.start()
    wal.append("a", entries(1), 0)
    wal.save("a", HardState(1))
    wal.wake()
    thread.join(PROCESS_S_MAX / 2)
    assert woken == [True]


def test_an_entry_cuts_off_what_is_behind_the_one_it_follows() -> None:
    fs = MemoryFileSystem()
    wal = Wal(fs, "wal", LiveStates())
    wal.append("a", entries(1, 2, 3), 0)
    wal.flush()
    wal.append("a", entries(2, term=5), 1)
    wal.flush()
    assert reopened(fs.crash_clone(Random(1))) == {"a": ["1/1", "2/5"]}


def test_a_gap_is_detected_and_requested_once() -> None:
    fs = MemoryFileSystem()
    wal = Wal(fs, "wal", LiveStates())
    wal.append("a", entries(1), 0)
    wal.flush()
    wal.append("a", entries(4), 3)
    wal.append("a", entries(5), 4)
    assert wal.flush() == [Resend("a", 2)]
    wal.append("a", entries(2, 3, 4, 5), 1)
    assert wal.flush() == [Written("a", 1, 2, 5, 1, 1)]
    assert reopened(fs.crash_clone(Random(1))) == {"a": ["1/1", "2/1", "3/1", "4/1", "5/1"]}


def test_a_gap_in_a_sparse_sequence_is_found_too() -> None:
    wal = Wal(MemoryFileSystem(), "wal", LiveStates())
    wal.append("a", entries(10), 4)
    wal.append("a", entries(30), 20)
    assert wal.flush() == [Written("a", 1, 10, 10, 4, 1), Resend("a", 11)]


def test_writes_below_the_smallest_live_index_are_dropped() -> None:
    fs = MemoryFileSystem()
    live = LiveStates()
    wal = Wal(fs, "wal", live)
    live["a"] = LiveState(5, LiveSet.from_iterable([3]))
    wal.append("a", entries(1, 2, 3, 4, 5, 6), 0)
    assert wal.flush() == [Written("a", 1, 3, 6, 2, 1)]
    assert reopened(fs.crash_clone(Random(1)), live) == {"a": ["3/1", "4/1", "5/1", "6/1"]}


def test_files_older_than_an_install_are_skipped() -> None:
    fs = MemoryFileSystem()
    wal = Wal(fs, "wal", LiveStates())
    wal.save("a", HardState(3, "n1", 0))
    wal.append("a", entries(1, 2, 3, 4), 0)
    wal.append("a/9", entries(4, 9, term=2), 2)
    (_, _, first, second, rolled) = wal.roll()
    assert (first, second) == (Written("a/9", 2, 4, 4, 2, 1), Written("a/9", 2, 9, 9, 4, 1))
    assert isinstance(rolled, Rolled)
    wal.restart("a")
    wal.append("a", entries(10, term=2), 9)
    assert wal.flush() == [Written("a", 2, 10, 10, 9, 2)]
    live = LiveStates()
    live["a"] = LiveState(9, LiveSet.from_iterable([1, 4, 9]))
    found = Wal(fs.crash_clone(Random(1)), "wal", live).recover({"a": rolled.number})
    assert list(found["a"].entries) == [10]
    assert list(found["a/9"].entries) == [4, 9]
    assert found["a"].state == HardState(3, "n1", 0)


def test_a_full_file_is_followed_by_an_independent_one() -> None:
    fs = MemoryFileSystem()
    wal = Wal(fs, "wal", LiveStates(), file_bytes_max=100)
    wal.save("a", HardState(7, "n3", 0))
    wal.append("a", entries(1), 0)
    rolled = wal.flush()[-1]
    assert isinstance(rolled, Rolled)
    assert list(rolled.indexes["a"]) == [(1, 1, 1)]
    wal.append("a", entries(2), 1)
    wal.flush()
    wal.remove(rolled.number)
    assert reopened(fs.crash_clone(Random(1))) == {"a": ["2/1"]}
    assert Wal(fs, "wal", LiveStates()).recover({})["a"].state == HardState(7, "n3", 0)


def test_a_failed_round_is_retried_in_another_file() -> None:
    disk = MemoryFileSystem()
    fs = FaultyFileSystem(disk, [Fault.parse("fdatasync *.wal nth=2 EIO")])
    wal = Wal(fs, "wal", LiveStates())
    wal.append("a", entries(1), 0)
    wal.flush()
    wal.append("a", entries(2), 1)
    (refused,) = wal.flush()
    assert isinstance(refused, WriteRefused)
    wal.append("a", entries(3), 2)
    assert wal.flush() == [Written("a", 1, 2, 2, 1, 2), Written("a", 1, 3, 3, 2, 2)]
    assert reopened(disk.crash_clone(Random(1))) == {"a": ["1/1", "2/1", "3/1"]}
    assert disk.list("wal") == [wal_name(1), wal_name(2)]


def test_a_torn_end_is_truncated_and_earlier_damage_is_reported() -> None:
    fs = MemoryFileSystem()
    wal = Wal(fs, "wal", LiveStates())
    for index in (1, 2, 3):
        wal.append("a", entries(index), index - 1)
        wal.flush()
    wal.close()
    path = f"wal/{wal_name(1)}"
    data = fs.open_read(path).pread(10_000, 0)
    for end in range(len(data)):
        torn = MemoryFileSystem()
        torn.mkdir("wal")
        torn.open_append(path).write(data[:end])
        found = reopened(torn).get("a", [])
        assert found == ["1/1", "2/1", "3/1"][: len(found)]
    last_batch = len(data) - 24 - 36 - 3
    for at in range(last_batch):
        damaged = MemoryFileSystem()
        damaged.mkdir("wal")
        damaged.open_append(path).write(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        with pytest.raises(DamagedFile):
            reopened(damaged)


def test_files_of_a_dropped_group_are_skipped() -> None:
    fs = MemoryFileSystem()
    wal = Wal(fs, "wal", LiveStates())
    wal.append("a", entries(1), 0)
    wal.append("gone", entries(1, 2), 0)
    wal.save("gone", HardState(7, "n3", 0))
    wal.flush()
    # It had installed a snapshot, which went with its files.
    wal.restart("gone")
    wal.append("gone", entries(51), 50)
    wal.flush()
    wal.append("gone/50", entries(3), 0)
    wal.flush()
    with pytest.raises(DamagedFile):
        Wal(fs, "wal", LiveStates()).recover({})
    assert list(Wal(fs, "wal", LiveStates()).recover({}, known={"a"})) == ["a"]


def test_a_dropped_group_is_not_in_the_next_file() -> None:
    fs = MemoryFileSystem()
    wal = Wal(fs, "wal", LiveStates())
    for group in ("a", "gone"):
        wal.append(group, entries(1), 0)
        wal.save(group, HardState(7, "n3", 0))
    wal.flush()
    wal.append("gone", entries(2), 1)
    wal.forget("gone")
    wal.append("a", entries(2), 1)
    (*_, rolled) = wal.roll()
    assert isinstance(rolled, Rolled)
    assert list(rolled.indexes) == ["a"]
    wal.remove(rolled.number)
    assert list(Wal(fs, "wal", LiveStates()).recover({})) == ["a"]


class Meanwhile(ManualClock):
    """A wait by this clock lets something else happen."""

    def __init__(self) -> None:
        super().__init__()
        self.happens: Callable[[], None] = lambda: None

    def sleep(self, seconds: float) -> None:
        self.happens()


def test_a_group_may_be_dropped_while_its_write_fails() -> None:
    """A full disk ends an install, in another thread, while the log's own thread is refused."""
    clock = Meanwhile()
    faults = [Fault("fdatasync", "*", kind="SLOW"), Fault("fdatasync", "*", kind="ENOSPC")]
    wal = Wal(FaultyFileSystem(MemoryFileSystem(), faults, clock), "wal", LiveStates())
    clock.happens = lambda: wal.forget("a/9")
    wal.append("a/9", entries(3, 7), 0)
    wal.append("a", entries(1), 0)
    (refused,) = wal.flush()
    assert isinstance(refused, WriteRefused)
    assert Written("a", 1, 1, 1, 0, 2) in wal.flush()


def test_bytes_of_a_refused_write_are_truncated() -> None:
    """So that a disk that is full because of it is not full for good."""
    inner = MemoryFileSystem()
    fs = FaultyFileSystem(inner, [])
    wal = Wal(fs, "wal", LiveStates())
    wal.append("a", entries(1), 0)
    wal.flush()
    size = inner.stat(f"wal/{wal_name(1)}").size
    fs.add(Fault("write", "*", kind="SHORT"))
    wal.append("a", [Entry(2, 1, bytes(10_000))], 1)
    assert isinstance(wal.flush()[0], WriteRefused)
    assert inner.stat(f"wal/{wal_name(1)}").size == size
    assert wal.flush() == [Written("a", 1, 2, 2, 1, 2)]
    assert len(reopened(inner.crash_clone(Random(1)))["a"]) == 2


class Watched(Wal):
    """Checks which files are closed at every change."""

    def __setattr__(self, name: str, value: object) -> None:
        super().__setattr__(name, value)
        if name in {"_file", "_number"} and hasattr(self, "_number"):
            self.seen.append(self.closed_number)

    def __init__(self, fs: FaultyFileSystem) -> None:
        self.seen: list[int] = []
        super().__init__(fs, "wal", LiveStates())


def test_a_file_that_is_begun_after_a_refusal_is_never_taken_for_closed() -> None:
    """A snapshot that is installed just then would say that nothing in it counts."""
    wal = Watched(FaultyFileSystem(MemoryFileSystem(), [Fault("fdatasync", "*", kind="ENOSPC")]))
    wal.append("a", entries(1), 0)
    assert isinstance(wal.flush()[0], WriteRefused)
    assert wal.closed_number == 1
    assert wal.flush() == [Written("a", 1, 1, 1, 0, 2)]
    assert max(wal.seen) == 1


def tail_of(data: bytes) -> WalTail:
    return parse_batches(data, 1, "1.wal").tail


def written(*payloads: bytes) -> tuple[bytes, int]:
    """A file with a batch for each payload, and where the last one begins."""
    fs = MemoryFileSystem()
    wal = Wal(fs, "wal", LiveStates())
    start = 0
    for index, payload in enumerate(payloads, 1):
        start = 0 if index == 1 else fs.stat(f"wal/{wal_name(1)}").size
        wal.append("a", [Entry(index, 1, payload)], index - 1)
        wal.flush()
    return read_file(fs, f"wal/{wal_name(1)}"), start


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"short",
        b"x" * 700,
        bytes(3000),
        b"x" * 700 + bytes(1100) + b"y" * 500,
        b"x" + bytes(9),
    ],
)
def test_every_flipped_bit_of_the_last_batch_is_distinguished_from_a_torn_write(
    payload: bytes,
) -> None:
    data, start = written(b"first", payload)
    for at in range(start, len(data), 1 if len(payload) < 1000 else 97):
        for bit in range(8):
            flipped = data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :]
            assert tail_of(flipped) is WalTail.DAMAGED, (at - start, bit)


@pytest.mark.parametrize("zeros", [0, 511, 512, 1100, 5000])
@pytest.mark.parametrize("first", range(441, 480))
def test_a_torn_write_is_distinguished_from_written_sectors_of_zeros(
    zeros: int, first: int
) -> None:
    """Wherever sectors begin in the batch."""
    data, start = written(b"f" * first, b"x" * 600 + bytes(zeros) + b"y" * 600)
    sectors = range(start // 512, len(data) // 512 + 1)
    for sector in sectors:
        low, high = max(start, sector * 512), min(sector * 512 + 512, len(data))
        if not any(data[low:high]):
            continue
        torn = data[:low] + bytes(high - low) + data[high:]
        # With less than a checksum it is unknown whether it is missing.
        is_known = sector > start // 512 or high - low >= 4
        assert not is_known or tail_of(torn) is WalTail.TORN, (sector - start // 512, high - low)
        for at in (start + 5, low, (low + high) // 2, high - 1, len(data) - 1):
            flipped = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
            assert tail_of(flipped) is WalTail.DAMAGED, at - start
    for end in range(start + 1, len(data), 31):
        assert tail_of(data[:end]) is WalTail.TORN, end


def test_more_sectors_of_zeros_than_are_counted_are_damage(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(wal_format, "ZEROS_MAX", 2**2 - 1)
    for count, tail in ((1, WalTail.TORN), (5, WalTail.DAMAGED)):
        data, start = written(b"first", b"x" * 1024 + bytes(512 * (count + 1)) + b"y" * 1024)
        low = (start // 512 + 1) * 512
        assert tail_of(data[:low] + bytes(512) + data[low + 512 :]) is tail


def test_a_batch_of_an_earlier_version_has_no_count_of_zeros() -> None:
    data, start = written(b"first", b"x" * 700)
    assert data[start + 20 : start + 24] == bytes(4)
    data, start = written(b"first", b"x" * 700 + bytes(1100))
    assert data[start + 20 : start + 24] == b"\x02\0\xfd\xff"


def test_bytes_after_a_power_cut_are_torn() -> None:
    data, start = written(b"first", b"second", bytes(range(1, 256)) * 12)
    assert tail_of(data) is WalTail.NOTHING
    for end in range(start + 1, len(data)):
        assert tail_of(data[:end]) is WalTail.TORN, end
    for sector in range(start // 512 + 1, len(data) // 512 + 1):
        low, high = sector * 512, min(sector * 512 + 512, len(data))
        if low < len(data):
            assert tail_of(data[:low] + bytes(high - low) + data[high:]) is WalTail.TORN
            # The file has its length, and the rest of it is missing.
            assert tail_of(data[:low] + bytes(len(data) - low)) is WalTail.TORN


def test_a_state_is_durable_before_it_is_reported() -> None:
    fs = MemoryFileSystem()
    wal = Wal(fs, "wal", LiveStates())
    wal.append("a", entries(1), 0)
    wal.flush()
    before = fs.stat(f"wal/{wal_name(1)}").size
    wal.save("a", HardState(7, "n3", 0))
    wal.append("a", entries(2), 1)
    wal.flush()
    data = read_file(fs, f"wal/{wal_name(1)}")
    for at in range(before, len(data) - 24):
        with pytest.raises(DamagedFile):
            tail_of(data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :])


def test_a_batch_is_proved_when_nothing_else_is_written() -> None:
    fs = MemoryFileSystem()
    wal = Wal(fs, "wal", LiveStates())
    for index in (1, 2):
        wal.append("a", entries(index), index - 1)
        wal.flush()
    assert wal.prove() == []
    size = fs.stat(f"wal/{wal_name(1)}").size
    assert wal.prove() == []
    assert fs.stat(f"wal/{wal_name(1)}").size == size, "once is enough"
    fs.flip(f"wal/{wal_name(1)}", size - 24 - 10)
    with pytest.raises(DamagedFile):
        reopened(fs)
    # The proof itself has nothing to lose.
    fs.flip(f"wal/{wal_name(1)}", size - 24 - 10)
    fs.flip(f"wal/{wal_name(1)}", size - 10)
    wal = Wal(fs, "wal", LiveStates())
    assert list(wal.recover({})["a"].entries) == [1, 2]
    assert not wal.is_doubtful


def test_a_group_gets_a_proof_of_its_batch_on_request() -> None:
    fs = MemoryFileSystem()
    path = f"wal/{wal_name(1)}"
    wal = Wal(fs, "wal", LiveStates())
    wal.append("a", entries(1), 0)
    wal.flush()
    wal.append("a", entries(2), 1)
    wal.ask_proof("a")
    assert wal.flush() == [Written("a", 1, 2, 2, 1, 1), Proved("a")]
    size = fs.stat(path).size
    wal.ask_proof("b")
    assert wal.flush() == [Proved("b")]
    assert fs.stat(path).size == size, "it was proved before"
    fs.flip(path, size - 24 - 10)
    with pytest.raises(DamagedFile):
        reopened(fs)


def test_a_refused_proof_is_written_again() -> None:
    disk = MemoryFileSystem()
    fs = FaultyFileSystem(disk, [Fault.parse("fdatasync *.wal nth=2 EIO")])
    wal = Wal(fs, "wal", LiveStates(), manifest=RaftManifest(fs, "."))
    wal.append("a", entries(1), 0)
    wal.flush()
    wal.ask_proof("a")
    (refused,) = wal.flush()
    assert isinstance(refused, WriteRefused)
    assert wal.flush() == [Proved("a")]
    damage_of_the_first_file_is_found(disk)


def test_the_file_after_a_restart_proves_the_batches_before_it() -> None:
    fs = MemoryFileSystem()
    wal = Wal(fs, "wal", LiveStates(), manifest=RaftManifest(fs, "."))
    wal.append("a", entries(1), 0)
    wal.flush()
    wal.close()
    wal = Wal(fs, "wal", LiveStates(), manifest=RaftManifest(fs, "."))
    wal.recover({})
    wal.ask_proof("a")
    assert wal.flush() == [Proved("a")]
    damage_of_the_first_file_is_found(fs)


def damage_of_the_first_file_is_found(fs: MemoryFileSystem) -> None:
    path = f"wal/{wal_name(1)}"
    fs.flip(path, fs.stat(path).size - 2)
    with pytest.raises(DamagedFile, match="were durable"):
        Wal(fs, "wal", LiveStates(), manifest=RaftManifest(fs, ".")).recover({})


def test_truncated_bytes_are_logged_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    data, start = written(b"first", b"second")
    damaged = bytearray(data)
    damaged[-1] ^= 1
    for content, doubtful in ((data[:-3], False), (bytes(damaged), True)):
        fs = MemoryFileSystem()
        fs.mkdir("wal")
        with fs.open_append(f"wal/{wal_name(1)}") as file:
            file.write(content)
        wal = Wal(fs, "wal", LiveStates())
        caplog.clear()
        assert list(wal.recover({})["a"].entries) == [1]
        cut_bytes = len(content) - start
        assert (wal.is_doubtful, wal.cut_bytes) == (doubtful, cut_bytes)
        (line,) = [each.getMessage() for each in caplog.records]
        assert f"file='wal/{wal_name(1)}' offset={start} bytes={cut_bytes}" in line
