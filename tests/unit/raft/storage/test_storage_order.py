"""Files of the write-ahead log go to segments one after the other."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from lithify.errors import InvalidInput
from lithify.fs import MemoryFileSystem
from lithify.log.segments.segment_file import read_blocks
from lithify.raft.entry import Entry
from lithify.raft.storage import segment_file
from lithify.raft.storage.segment_file import SegmentAppender
from lithify.raft.storage.storage import RaftStorage
from lithify.raft.storage.wal.wal import Rolled

if TYPE_CHECKING:
    from lithify.fs import File
    from lithify.log.segments.block_index import BlockIndex
    from lithify.log.segments.segment_file import SegmentFooter


def test_a_file_is_not_flushed_before_the_last_one_is_settled() -> None:
    storage = RaftStorage(MemoryFileSystem(), "d")
    log = storage.create("a").log
    log.append([Entry(1, 1, b"x")])
    (first,) = (event for event in storage.wal.roll() if isinstance(event, Rolled))
    done = storage.flush(first)
    log.append([Entry(2, 1, b"y")])
    (second,) = (event for event in storage.wal.roll() if isinstance(event, Rolled))
    with pytest.raises(InvalidInput, match=f"file {first.number} was flushed and is not settled"):
        storage.flush(second)
    storage.settle(first, done)
    storage.settle(second, storage.flush(second))
    assert [entry.payload for entry in log.read([1, 2])] == [b"x", b"y"]


def test_a_segment_is_read_while_the_next_file_is_appended_to_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The reader has seen the footer; then the writer cuts it off, with the block index."""
    fs = MemoryFileSystem()
    storage = RaftStorage(fs, "d")
    own = storage.create("a")
    own.log.append([Entry(1, 1, b"x")])
    (rolled,) = (event for event in storage.wal.roll() if isinstance(event, Rolled))
    storage.settle(rolled, storage.flush(rolled))

    def cut_off(file: File, footer: SegmentFooter) -> BlockIndex:
        monkeypatch.undo()
        appender = SegmentAppender.reopen(fs, own.directory, 1, storage.limits)
        assert appender is not None
        appender.append([Entry(2, 1, b"y" * 100)])
        appender.abandon()
        return read_blocks(file, footer)

    monkeypatch.setattr(segment_file, "read_blocks", cut_off)
    (found,) = own.log.read([1])
    assert found.payload == b"x"


def test_a_read_while_a_group_is_dropped_leaves_no_file_open() -> None:
    """An open file would keep its bytes on disk for as long as the process runs."""
    storage = RaftStorage(MemoryFileSystem(), "d")
    log = storage.create("a").log
    log.append([Entry(1, 1, b"x")])
    (rolled,) = (event for event in storage.wal.roll() if isinstance(event, Rolled))
    storage.settle(rolled, storage.flush(rolled))
    with log.segments._use(log.segments.spans[0].ref) as (file, _):
        storage.forget("a")
        assert file.read([1])[1].payload == b"x"
    assert not log.segments._open
