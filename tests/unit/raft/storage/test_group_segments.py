"""Reads of a segment while a repair replaces it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from lithify.fs import MemoryFileSystem, read_file
from lithify.log.segments.segment_file import SEGMENT_HEADER_BYTES
from lithify.raft.entry import Entry
from lithify.raft.errors import EntryUnreadable
from lithify.raft.storage.segment_file import SegmentFile
from lithify.raft.storage.storage import RaftStorage
from lithify.raft.storage.wal.wal import Rolled

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lithify.raft.storage.group_log import GroupLog

BLOCK = b"x" * 2**17
"""Large, so that each entry has a block of its own."""


def write(fs: MemoryFileSystem, path: str, data: bytes) -> None:
    """Replace a file, as a repair does: readers keep the old one open."""
    with fs.open_append(f"{path}.new") as file:
        file.write(data)
        file.fsync()
    fs.rename(f"{path}.new", path)


class Life:
    """A group whose first entry is damaged on disk."""

    def __init__(self) -> None:
        self.fs = MemoryFileSystem()
        storage = RaftStorage(self.fs, "d")
        own = storage.create("a")
        own.log.append([Entry(1, 1, BLOCK), Entry(2, 1, BLOCK)])
        (rolled,) = (event for event in storage.wal.roll() if isinstance(event, Rolled))
        storage.settle(rolled, storage.flush(rolled))
        self.log: GroupLog = own.log
        self.ref = own.log.segments.spans[0].ref
        self.path = f"{own.directory}/{self.ref.name}"
        self.intact = read_file(self.fs, self.path)
        damaged = bytearray(self.intact)
        damaged[SEGMENT_HEADER_BYTES + 700] ^= 0x40
        write(self.fs, self.path, bytes(damaged))

    def repair(self) -> None:
        write(self.fs, self.path, self.intact)
        self.log.segments.repaired(self.ref)
        self.log.segments.damages.repaired(self.ref.name, "test")


@pytest.fixture
def life(monkeypatch: pytest.MonkeyPatch) -> Life:
    """The repair ends when the first read of the segment has read, and not returned."""
    life = Life()

    def read(segment: SegmentFile, indexes: Sequence[int]) -> dict[int, Entry]:
        monkeypatch.undo()
        found = segment.read(indexes)
        life.repair()
        return found

    monkeypatch.setattr(SegmentFile, "read", read)
    return life


def test_damage_is_not_found_again_by_a_read_that_began_before_the_repair(life: Life) -> None:
    with pytest.raises(EntryUnreadable):
        life.log.read([1])
    assert not life.log.segments.damages.open
    assert life.log.segments.damages.overview()["damage_found"] == 0
    assert life.log.read([1])[0].payload == BLOCK


def test_a_file_that_was_replaced_during_a_read_is_not_read_again(life: Life) -> None:
    assert life.log.read([2])[0].payload == BLOCK
    assert life.log.read([1])[0].payload == BLOCK
    assert not life.log.segments.damages.open


def test_a_snapshot_beside_a_flush_counts_what_the_flush_adds_to_a_sealed_segment() -> None:
    fs = MemoryFileSystem()
    storage = RaftStorage(fs, "d")
    log = storage.create("a").log
    log.append([Entry(1, 1, b"one")])
    (rolled,) = (event for event in storage.wal.roll() if isinstance(event, Rolled))
    storage.settle(rolled, storage.flush(rolled))
    log.append([Entry(2, 1, b"two")])
    (rolled,) = (event for event in storage.wal.roll() if isinstance(event, Rolled))
    # The flush has read which segment is the newest, when a repair seals that.
    done = storage.flush(rolled)
    log.segments.seal_newest()
    assert log.segments.cut() == (0, 0)
    storage.settle(rolled, done)
    assert log.segments.spans[-1].last == 2
    log.segments.limit(1)
    assert log.segments.cut() == (2, 1)
