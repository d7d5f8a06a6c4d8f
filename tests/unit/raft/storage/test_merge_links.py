"""Merged segments replace their sources, despite a crash in between."""

from __future__ import annotations

from random import Random

import pytest

from lithify.fs import FileSystem, MemoryFileSystem, read_file
from lithify.raft.storage.file_names import compacting_name, segment_name
from lithify.raft.storage.merge_links import purge_links, put_in_place, recover
from lithify.testing.faulty_fs import Fault, FaultyFileSystem, PowerCut

NUMBERS = [3, 4, 7]


def prepared(numbers: list[int]) -> MemoryFileSystem:
    """Sources, a neighbour, and the finished target of a merge."""
    fs = MemoryFileSystem()
    fs.mkdir("g")
    for number in [*numbers, 9]:
        with fs.open_append(f"g/{segment_name(number)}") as file:
            file.write(b"source %d" % number)
            file.fsync()
    with fs.open_append(f"g/{compacting_name(numbers)}") as file:
        file.write(b"merged")
        file.fsync()
    fs.sync_dir("g")
    return fs


def texts(fs: FileSystem) -> dict[int, bytes]:
    return {n: read_file(fs, f"g/{segment_name(n)}") for n in [*NUMBERS, 9]}


BEFORE = {3: b"source 3", 4: b"source 4", 7: b"source 7", 9: b"source 9"}
AFTER = {3: b"merged", 4: b"merged", 7: b"merged", 9: b"source 9"}


def test_old_names_read_the_merged_file() -> None:
    fs = prepared(NUMBERS)
    put_in_place(fs, "g", [NUMBERS])
    assert texts(fs) == AFTER
    assert fs.list("g") == [segment_name(n) for n in [*NUMBERS, 9]]
    assert purge_links(fs, "g", before_ms=2**60) == [segment_name(4), segment_name(7)]
    assert fs.list("g") == [segment_name(3), segment_name(9)]


def test_a_single_source_is_replaced() -> None:
    fs = prepared([3])
    put_in_place(fs, "g", [[3]])
    assert read_file(fs, f"g/{segment_name(3)}") == b"merged"
    assert not fs.stat(f"g/{segment_name(3)}").is_symlink


def test_a_dangling_link_is_deleted_at_once() -> None:
    fs = prepared(NUMBERS)
    put_in_place(fs, "g", [NUMBERS])
    fs.remove(f"g/{segment_name(3)}")
    assert purge_links(fs, "g", before_ms=0) == [segment_name(4), segment_name(7)]


@pytest.mark.parametrize("kind", ["CRASH", "CRASH_AFTER"])
@pytest.mark.parametrize("seed", range(3))
def test_a_crash_anywhere_leaves_all_sources_or_the_merged_file(kind: str, seed: int) -> None:
    nth = 1
    while True:
        disk = prepared(NUMBERS)
        fs = FaultyFileSystem(disk, [Fault("mutating", "*", nth, kind=kind)])
        try:
            put_in_place(fs, "g", [NUMBERS])
        except PowerCut:
            pass
        else:
            break
        found = disk.crash_clone(Random(seed))
        _recover_with_crashes(found, seed)
        recover(found, "g")
        assert texts(found) in (BEFORE, AFTER)
        assert found.list("g") == [segment_name(n) for n in [*NUMBERS, 9]]
        assert recover(found, "g") == []
        nth += 1
    assert nth > 12


def _recover_with_crashes(fs: MemoryFileSystem, seed: int) -> None:
    """A second crash, at every step of the recovery, changes nothing about what it leads to."""
    nth = 1
    while True:
        disk = fs.crash_clone(Random(seed))
        try:
            recover(FaultyFileSystem(disk, [Fault("mutating", "*", nth, kind="CRASH")]), "g")
        except PowerCut:
            again = disk.crash_clone(Random(nth))
            recover(again, "g")
            assert texts(again) in (BEFORE, AFTER)
            nth += 1
        else:
            return
