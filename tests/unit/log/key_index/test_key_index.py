"""The key index: rows in buckets, read in part, one-valued columns left out, damage found."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lithify.errors import Corrupt, DamagedFile, InvalidInput, UnsupportedVersion
from lithify.fs import FileSystem, MemoryFileSystem
from lithify.log.key_index.key_index import (
    BUCKETS,
    COLUMNS,
    ORDER_EVENT,
    IndexFacts,
    KeyIndex,
    KeyRows,
    encode,
    write_key_index,
)
from lithify.log.key_index.key_index_kernels import position_order
from lithify.testing.faulty_fs import Fault, FaultyFileSystem

LOG_ID = bytes(range(12))
PATH = "/log/000000000003.keys"
GOLDEN = Path(__file__).parents[3] / "golden"
FACTS = IndexFacts(ORDER_EVENT, 700, 7, 2)


def make_rows(count: int) -> KeyRows:
    keys = [hashlib.blake2b(b"%d" % (i % 70), digest_size=16).digest() for i in range(count)]
    words = np.frombuffer(b"".join(keys), dtype="<u8").reshape(-1, 2)
    number = np.arange(count, dtype=np.int64)
    return KeyRows(
        hash_high=words[:, 0].copy(),
        hash_low=words[:, 1].copy(),
        position=number * 2 + 5,
        slot=np.full(count, -1, np.int32),
        slots=np.ones(count, np.uint32),
        length=(number + 100).astype(np.uint32),
        flags=(number % 3).astype(np.uint16),
        publish_ms=number + 1_700_000_000_000,
        event_ms=np.zeros(count, np.int64),
        group=np.full(count, 2**64 - 1, np.uint64),
    )


def every(rows: KeyRows) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    return np.ones(len(rows), dtype=np.bool_)


def encoded(rows: KeyRows, segment_crc: int = 77) -> bytes:
    return b"".join(encode(rows, every(rows), FACTS, 3, LOG_ID, segment_crc))


def disk_with(data: bytes) -> MemoryFileSystem:
    fs = MemoryFileSystem()
    fs.mkdir("/log")
    write_key_index(fs, PATH, [data], "1")
    return fs


def open_index(fs: FileSystem) -> KeyIndex:
    return KeyIndex(fs.open_read(PATH), 3, LOG_ID, 77)


def pick(rows: KeyRows, order: np.ndarray[tuple[int], np.dtype[np.int64]]) -> KeyRows:
    return KeyRows(**{name: getattr(rows, name)[order] for name in COLUMNS})


def by_bucket(rows: KeyRows) -> KeyRows:
    return pick(rows, np.argsort(rows.hash_high >> np.uint64(56), kind="stable"))


def equal(left: KeyRows, right: KeyRows) -> bool:
    return all(
        np.array_equal(getattr(left, c), getattr(right, c))
        and getattr(left, c).dtype == getattr(right, c).dtype
        for c in COLUMNS
    )


def test_rows_are_read_by_bucket_and_in_their_order_within_a_bucket() -> None:
    rows = make_rows(500)
    with open_index(disk_with(encoded(rows))) as index:
        assert (index.rows, index.facts) == (500, FACTS)
        assert (index.starts[0], index.starts[BUCKETS]) == (0, 500)
        found = index.read()
    assert equal(found, by_bucket(rows))


def test_only_the_rows_to_keep_are_in_the_file() -> None:
    rows = make_rows(500)
    keep = np.arange(500) % 7 == 3
    fs = disk_with(b"".join(encode(rows, keep, FACTS, 3, LOG_ID, 77)))
    with open_index(fs) as index:
        assert equal(index.read(), by_bucket(pick(rows, np.flatnonzero(keep))))


def test_a_range_of_buckets_is_read_alone_and_the_ranges_make_up_the_whole() -> None:
    rows = make_rows(500)
    with open_index(disk_with(encoded(rows))) as index:
        parts = [index.read(first, first + 32) for first in range(0, BUCKETS, 32)]
    for number, part in enumerate(parts):
        assert ((part.hash_high >> np.uint64(56 + 5)) == number).all()
    joined = {c: np.concatenate([getattr(part, c) for part in parts]) for c in COLUMNS}
    assert equal(KeyRows(**joined), by_bucket(rows))


def test_a_column_that_was_not_requested_is_absent() -> None:
    with open_index(disk_with(encoded(make_rows(9)))) as index:
        found = index.read(columns=("flags", "slot"))
    assert len(found) == 9
    assert not hasattr(found, "position")


def test_a_column_of_one_value_takes_no_bytes() -> None:
    rows = make_rows(500)
    narrow = encoded(rows)
    rows.slot[7] = 3
    rows.event_ms[499] = 1
    assert len(encoded(rows)) - len(narrow) == (4 + 8) * 500 + 2 * 4 * BUCKETS


def test_an_empty_index_is_an_index() -> None:
    with open_index(disk_with(encoded(make_rows(0)))) as index:
        assert index.rows == len(index.read()) == 0
        assert index.facts == FACTS


def test_every_flipped_bit_is_found() -> None:
    data = encoded(make_rows(4))
    for offset in range(len(data)):
        fs = disk_with(data)
        fs.flip(PATH, offset, 1 << offset % 8)
        with pytest.raises((Corrupt, UnsupportedVersion)):
            open_index(fs).read()


def test_damage_in_other_buckets_and_columns_does_no_harm() -> None:
    rows = make_rows(500)
    data = encoded(rows)
    fs = disk_with(data)
    fs.flip(PATH, len(data) - 1, 1)  # the last row's publish_ms
    with open_index(fs) as index:
        index.read(0, BUCKETS - 1)
        index.read(columns=("hash_high", "position"))
        with pytest.raises(DamagedFile, match=r"bucket 25\d of publish_ms"):
            index.read()


@pytest.mark.parametrize("size", [0, 7, 100, 160, 2000, 5000, -1])
def test_an_index_cut_short_is_no_index(size: int) -> None:
    with pytest.raises(Corrupt):
        open_index(disk_with(encoded(make_rows(50))[:size]))


def test_the_index_of_another_segment_is_refused() -> None:
    with pytest.raises(DamagedFile, match="another segment"):
        open_index(disk_with(encoded(make_rows(3), segment_crc=78)))


def test_columns_of_different_lengths_are_refused() -> None:
    with pytest.raises(InvalidInput, match="different lengths"):
        KeyRows(slot=np.zeros(2, np.int32), flags=np.zeros(3, np.uint16))


def test_a_full_disk_leaves_the_old_index_and_nothing_else() -> None:
    old, new = encoded(make_rows(50)), encoded(make_rows(60))
    fs = disk_with(old)
    full = FaultyFileSystem(fs, [Fault.parse("writev *.tmp SHORT")])
    with pytest.raises(OSError, match="space"):
        write_key_index(full, PATH, [new], "2")
    assert fs.list("/log") == ["000000000003.keys"]
    with open_index(fs) as index:
        assert index.rows == 50


def test_version_1_is_rebuilt() -> None:
    with pytest.raises(UnsupportedVersion):
        open_index(disk_with((GOLDEN / "key_index_v1.bin").read_bytes()))


def test_version_2_stays_as_it_is() -> None:
    assert encoded(make_rows(20)) == (GOLDEN / "key_index_v2.bin").read_bytes()


@given(st.lists(st.tuples(st.integers(0, 2**63 - 1) | st.integers(0, 3), st.integers(-1, 9))))
def test_rows_are_sorted_by_position_and_slot_and_equal_ones_stay(
    found: list[tuple[int, int]],
) -> None:
    position = np.array([each for each, _ in found], np.int64)
    slot = np.array([each for _, each in found], np.int32)
    rows = np.arange(len(found))
    assert np.array_equal(position_order(rows, position, slot), np.lexsort((slot, position)))
    some = rows[::2]
    assert position_order(some, position, slot).tolist() == sorted(
        some.tolist(), key=lambda row: found[row]
    )
