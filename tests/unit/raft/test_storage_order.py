"""Files of the write-ahead log go to segments one after the other."""

from __future__ import annotations

import pytest

from lithify.errors import InvalidInput
from lithify.fs import MemoryFileSystem
from lithify.raft.entry import Entry
from lithify.raft.storage import RaftStorage
from lithify.raft.wal import Rolled


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
