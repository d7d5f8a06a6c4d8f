from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

import pytest

from lithify.clock import ManualClock
from lithify.errors import DamagedFrame, InvalidInput, MissingFile
from lithify.fs import MemoryFileSystem
from lithify.log.file_names import MANIFEST, segment_name
from lithify.log.log import Log
from lithify.log.pins import read_pin_files
from lithify.log.read_only_log import find_manifest, list_pins, open_readonly, read_active
from lithify.log.segments.segment_file import SEGMENT_HEADER_BYTES, SegmentFooter
from lithify.settings import Durability, LogSettings

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from lithify.fs import File, FileLock, FileSystem
    from lithify.log.reader import Snapshot

DIRECTORY = "/data/orders"
PIN = f"{DIRECTORY}/t0.pin"


def open_log(fs: FileSystem, durability: Durability = Durability.ALWAYS) -> Log:
    settings = LogSettings(durability=durability)
    return Log.open(fs, DIRECTORY, kind="topic", clock=ManualClock(), settings=settings)


def fill(log: Log, first: int, stop: int) -> None:
    for number in range(first, stop):
        log.append(b"entry %d" % number).result()


def reading(fs: FileSystem) -> AbstractContextManager[Snapshot]:
    return open_readonly(fs, DIRECTORY, owner="report", clock=ManualClock(), token="t0")


def positions(snapshot: Snapshot) -> list[int]:
    return [entry.position for entry in snapshot.read()]


def contents(fs: FileSystem) -> dict[str, bytes]:
    files = {}
    for name in fs.list(DIRECTORY):
        with fs.open_read(f"{DIRECTORY}/{name}") as file:
            files[name] = file.pread(file.size(), 0)
    return files


def test_a_reader_sees_what_a_writer_that_is_still_there_has_written() -> None:
    fs = MemoryFileSystem()
    log = open_log(fs)
    fill(log, 0, 3)
    log.roll()
    fill(log, 3, 5)

    with reading(fs) as snapshot:
        assert positions(snapshot) == [0, 1, 2, 3, 4]
        assert snapshot.last_position == 4
        fill(log, 5, 7)
        log.roll()
        assert positions(snapshot) == [0, 1, 2, 3, 4], "a snapshot never changes"

    with reading(fs) as snapshot:
        assert positions(snapshot) == [0, 1, 2, 3, 4, 5, 6]
        assert snapshot.last_position == 6, "though the active segment is empty"


def test_an_empty_log_has_nothing_to_read() -> None:
    fs = MemoryFileSystem()
    open_log(fs)
    with reading(fs) as snapshot:
        assert (positions(snapshot), snapshot.last_position) == ([], -1)


def test_files_are_not_reclaimed_under_a_reader() -> None:
    fs = MemoryFileSystem()
    log = open_log(fs)
    fill(log, 0, 3)
    log.roll()

    with reading(fs) as snapshot:
        assert [pin.owner for pin in log.pins()] == ["report"]
        log.drop_head(before=3)
        assert log.reclaim().files == 0
        assert positions(snapshot) == [0, 1, 2]

    assert log.pins() == []
    assert log.reclaim().files == 1


def test_the_pin_is_released_when_the_reader_fails() -> None:
    fs = MemoryFileSystem()
    open_log(fs)
    with pytest.raises(ZeroDivisionError), reading(fs):
        raise ZeroDivisionError
    assert not fs.exists(PIN)


class Interrupting(MemoryFileSystem):
    """Does something at the moment a pin is locked: before that, or after it."""

    def __init__(self) -> None:
        super().__init__()
        self.before: list[Log] = []
        self.after: list[str] = []

    def lock(self, path: str, owner: str) -> FileLock | None:
        if path == PIN and self.before:
            log = self.before.pop()
            log.drop_head(before=3)
            log.reclaim()
        lock = super().lock(path, owner)
        if path == PIN and self.after:
            self.remove(self.after.pop())
        return lock


def test_a_publish_between_manifest_and_pin_makes_the_reader_begin_again() -> None:
    fs = Interrupting()
    log = open_log(fs)
    fill(log, 0, 3)
    log.roll()
    fill(log, 3, 5)
    fs.before = [log]

    with reading(fs) as snapshot:
        assert fs.before == []
        assert snapshot.manifest.generation == log.manifest.generation
        assert positions(snapshot) == [3, 4], "not the segment that was deleted meanwhile"


def test_a_pin_removed_as_stale_by_a_reclaim_is_recreated() -> None:
    fs = Interrupting()
    log = open_log(fs)
    fs.after = [PIN]

    with reading(fs):
        assert fs.after == []
        assert [pin.owner for pin in log.pins()] == ["report"]


class Refusing(MemoryFileSystem):
    """Gives no lock on a pin."""

    code = errno.EROFS

    def lock(self, path: str, owner: str) -> FileLock | None:
        if path.endswith(".pin"):
            raise OSError(self.code, os.strerror(self.code), path)
        return super().lock(path, owner)


@pytest.mark.parametrize("code", [errno.EROFS, errno.EACCES, errno.EPERM])
def test_a_reader_that_may_not_write_reads_without_a_pin(code: int) -> None:
    fs = Refusing()
    fs.code = code
    fill(open_log(fs), 0, 3)
    before = contents(fs)

    with reading(fs) as snapshot:
        assert positions(snapshot) == [0, 1, 2]
    assert contents(fs) == before


def test_a_full_disk_is_not_mistaken_for_one_that_may_not_be_written() -> None:
    fs = Refusing()
    fs.code = errno.ENOSPC
    open_log(fs)
    with pytest.raises(OSError, match="No space left"), reading(fs):
        pass


def test_pins_cannot_be_listed_where_they_may_not_be_locked() -> None:
    fs = Refusing()
    open_log(fs)
    with fs.open_append(PIN):
        pass
    with pytest.raises(OSError, match="Read-only"):
        read_pin_files(fs, DIRECTORY)
    assert list_pins(fs, DIRECTORY) == []
    fs.code = errno.EIO
    with pytest.raises(OSError, match="Input/output error"):
        list_pins(fs, DIRECTORY)


def test_a_torn_tail_is_the_end_and_is_not_changed() -> None:
    fs = MemoryFileSystem()
    log = open_log(fs)
    fill(log, 0, 3)
    with fs.open_append(f"{DIRECTORY}/{segment_name(1)}") as file:
        file.write(b"half a fra")
    before = contents(fs)

    with reading(fs) as snapshot:
        assert positions(snapshot) == [0, 1, 2]
    assert contents(fs) == before


def test_a_damaged_frame_before_an_intact_one_is_damage() -> None:
    fs = MemoryFileSystem()
    fill(open_log(fs), 0, 3)
    fs.flip(f"{DIRECTORY}/{segment_name(1)}", SEGMENT_HEADER_BYTES + 40)

    with pytest.raises(DamagedFrame, match="after position 0") as caught, reading(fs):
        pass
    assert caught.value.offset == SEGMENT_HEADER_BYTES + 32 + 7
    assert not fs.exists(PIN)


class Growing(MemoryFileSystem):
    """A writer continues as soon as the reader has asked for the size of a segment."""

    rest = b""

    def open_read(self, path: str) -> File:
        file = super().open_read(path)
        size_now = file.size

        def size() -> int:
            before = size_now()
            if path.endswith(".seg"):
                with self.open_append(path) as writer:
                    writer.write(self.rest)
                self.rest = b""
            return before

        file.size = size  # type: ignore[method-assign]
        return file


def test_a_frame_that_is_finished_while_it_is_read_is_no_damage() -> None:
    fs = Growing()
    log = open_log(fs)
    fill(log, 0, 4)
    path = f"{DIRECTORY}/{segment_name(1)}"
    frame = 32 + 7
    with fs.open_append(path) as file:
        whole = file.pread(file.size(), 0)
        cut = SEGMENT_HEADER_BYTES + 2 * frame + 5
        file.truncate(cut)
    fs.rest = whole[cut:]

    with reading(fs) as snapshot:
        assert fs.rest == b""
        assert positions(snapshot) == [0, 1]


def test_a_segment_that_is_sealed_while_the_manifest_says_active_is_read_to_its_footer() -> None:
    fs = MemoryFileSystem()
    log = open_log(fs)
    fill(log, 0, 3)
    old = find_manifest(fs, DIRECTORY)
    log.roll()

    tail = read_active(fs, DIRECTORY, old)
    assert (tail.writer.entries, tail.torn_bytes) == (3, 0)


def test_a_footer_in_the_body_of_an_entry_ends_nothing() -> None:
    fs = MemoryFileSystem()
    log = open_log(fs)
    fill(log, 0, 2)
    frames_end = SEGMENT_HEADER_BYTES + 32 + 7
    # It is where a footer would be, and says that the frames end after the first one.
    size = log.active_bytes + 32
    padding = -(size - frames_end) % 24
    rows = (size + padding - frames_end) // 24
    footer = SegmentFooter(1, 1, 0, 0, 0, 0, frames_end, rows, rows_crc=0)
    log.append(bytes(padding) + footer.to_bytes()).result()
    assert log.active_bytes == footer.file_bytes
    log.abandon()

    with reading(fs) as snapshot:
        assert positions(snapshot) == [0, 1, 2]
    with open_log(fs) as again, again.snapshot() as snapshot:
        assert positions(snapshot) == [0, 1, 2]


def test_a_directory_without_a_log_is_named() -> None:
    fs = MemoryFileSystem()
    fs.mkdir(DIRECTORY)
    with pytest.raises(InvalidInput, match=f"{DIRECTORY} holds no log: it has no {MANIFEST}"):
        find_manifest(fs, DIRECTORY)
    with pytest.raises(InvalidInput, match="/nowhere does not exist"):
        find_manifest(fs, "/nowhere")
    with fs.open_append("/file"):
        pass
    with pytest.raises(InvalidInput, match="/file is a file"):
        find_manifest(fs, "/file")
    assert fs.list(DIRECTORY) == []


def test_a_log_without_its_manifest_or_a_segment_is_not_read_as_missing() -> None:
    fs = MemoryFileSystem()
    log = open_log(fs)
    fill(log, 0, 3)
    log.close()
    lost = fs.kill_clone()
    lost.remove(f"{DIRECTORY}/{MANIFEST}")
    with pytest.raises(MissingFile, match=MANIFEST):
        find_manifest(lost, DIRECTORY)
    fs.remove(f"{DIRECTORY}/{segment_name(1)}")
    with pytest.raises(MissingFile, match=segment_name(1)), reading(fs):
        pass
