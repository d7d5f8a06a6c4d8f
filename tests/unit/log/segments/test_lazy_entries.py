"""Entries of a piece, made when they are asked for."""

from __future__ import annotations

import pytest

from lithify.fs import MemoryFileSystem
from lithify.log.segments.lazy_entries import BLOCK_ENTRIES, FrameEntries
from lithify.settings import LogSettings
from tests.unit.log.helpers import open_log

COUNT = 2 * BLOCK_ENTRIES + 10


def entries_of_a_piece() -> FrameEntries:
    log = open_log(MemoryFileSystem(), LogSettings())
    log.append_many([b"%d" % number for number in range(COUNT)]).result()
    with log.snapshot() as snapshot:
        return FrameEntries(next(snapshot.read_frames()))


@pytest.mark.parametrize(
    "part",
    [
        slice(None),
        slice(0, 3),
        slice(BLOCK_ENTRIES - 1, BLOCK_ENTRIES + 1),
        slice(5, 2 * BLOCK_ENTRIES + 1, 7),
        slice(COUNT - 1, COUNT + 100),
        slice(COUNT, None),
        slice(7, 7),
        slice(None, None, -1),
    ],
)
def test_a_slice_is_that_of_a_list(part: slice) -> None:
    entries = entries_of_a_piece()
    found = entries[part]
    assert [entry.position for entry in found] == list(range(COUNT))[part]
    assert [entry.body for entry in found] == [b"%d" % number for number in range(COUNT)][part]


def test_it_is_walked_and_indexed_as_a_list_is() -> None:
    entries = entries_of_a_piece()
    assert len(entries) == COUNT
    assert [entry.position for entry in entries] == list(range(COUNT))
    assert (entries[0].position, entries[-1].position) == (0, COUNT - 1)
    with pytest.raises(IndexError):
        entries[COUNT]


def test_only_requested_entries_are_built_and_each_only_once() -> None:
    entries = entries_of_a_piece()
    taken = entries[BLOCK_ENTRIES + 1 : BLOCK_ENTRIES + 3]
    assert list(entries._blocks) == [1]
    assert entries[BLOCK_ENTRIES + 2] is taken[1]
