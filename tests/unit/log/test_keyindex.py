"""The key index: bucketed rows, read in part, made again when damaged."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest

from lithify.errors import Corrupt, DamagedFile, InvalidInput, UnsupportedVersion
from lithify.fs import MemoryFileSystem, read_file
from lithify.log.keyindex import BUCKETS, COLUMNS, KeyIndex, KeyRows, encode, load_or_build

LOG_ID = bytes(range(12))
PATH = "/log/000000000003.keys"
GOLDEN = Path(__file__).parents[2] / "golden" / "key_index_v1.bin"


def make_rows(count: int) -> KeyRows:
    keys = [hashlib.blake2b(b"%d" % (i % 70), digest_size=16).digest() for i in range(count)]
    words = np.frombuffer(b"".join(keys), dtype="<u8").reshape(-1, 2)
    number = np.arange(count, dtype=np.int64)
    return KeyRows(
        hash_high=words[:, 0],
        hash_low=words[:, 1],
        position=number * 2 + 5,
        offset=number * 100 + 64,
        length=np.full(count, 100, np.uint32),
        flags=(number % 3).astype(np.uint16),
        time_ms=number + 1_700_000_000_000,
    )


def disk_with(data: bytes) -> MemoryFileSystem:
    fs = MemoryFileSystem()
    fs.mkdir("/log")
    with fs.open_append(PATH) as file:
        file.write(data)
        file.fsync()
    return fs


def equal(left: KeyRows, right: KeyRows) -> bool:
    return all((getattr(left, c) == getattr(right, c)).all() for c in COLUMNS)


def test_rows_come_back_sorted_by_hash_and_position() -> None:
    rows = make_rows(500)
    fs = disk_with(encode(rows, 3, LOG_ID, 77))
    with fs.open_read(PATH) as file:
        index = KeyIndex(file, 3, LOG_ID, 77)
        assert index.rows == 500
        found = index.read()
    assert equal(found, rows.sorted())
    assert (np.diff(found.hash_high.astype(object)) >= 0).all()


def test_a_range_of_buckets_is_read_alone_and_the_ranges_make_up_the_whole() -> None:
    rows = make_rows(500)
    fs = disk_with(encode(rows, 3, LOG_ID, 77))
    with fs.open_read(PATH) as file:
        index = KeyIndex(file, 3, LOG_ID, 77)
        parts = [index.read(first, first + 32) for first in range(0, BUCKETS, 32)]
    for number, part in enumerate(parts):
        assert ((part.hash_high >> np.uint64(56 + 5)) == number).all()
    joined = KeyRows(*(np.concatenate([getattr(p, c) for p in parts]) for c in COLUMNS))
    assert equal(joined, rows.sorted())


def test_an_empty_index_is_an_index() -> None:
    fs = disk_with(encode(make_rows(0), 3, LOG_ID, 77))
    with fs.open_read(PATH) as file:
        assert len(KeyIndex(file, 3, LOG_ID, 77).read()) == 0


def test_every_flipped_bit_is_found() -> None:
    data = encode(make_rows(4), 3, LOG_ID, 77)
    for offset in range(len(data)):
        fs = disk_with(data)
        fs.flip(PATH, offset, 1 << offset % 8)
        with fs.open_read(PATH) as file, pytest.raises((Corrupt, UnsupportedVersion)):
            KeyIndex(file, 3, LOG_ID, 77).read()


def test_a_damaged_missing_or_foreign_index_is_made_again() -> None:
    rows = make_rows(50)
    good = encode(rows, 3, LOG_ID, 77)
    damaged = bytearray(good)
    damaged[-1] ^= 1
    for data in (None, b"", bytes(damaged), good[:-5], encode(rows, 3, LOG_ID, 78)):
        fs = MemoryFileSystem() if data is None else disk_with(data)
        fs.mkdir("/log")
        index, file = load_or_build(fs, PATH, 3, LOG_ID, 77, lambda: rows)
        with file:
            assert equal(index.read(), rows.sorted())
        assert read_file(fs, PATH) == good


def test_a_good_index_is_not_made_again() -> None:
    rows = make_rows(50)
    fs = disk_with(encode(rows, 3, LOG_ID, 77))

    def never() -> KeyRows:
        pytest.fail("built without need")

    _, file = load_or_build(fs, PATH, 3, LOG_ID, 77, never)
    file.close()


def test_columns_of_different_lengths_are_refused() -> None:
    rows = make_rows(3)
    crooked = KeyRows(rows.hash_high[:2], *(getattr(rows, c) for c in list(COLUMNS)[1:]))
    with pytest.raises(InvalidInput, match="different lengths"):
        encode(crooked, 3, LOG_ID, 77)


def test_the_index_of_another_segment_is_refused() -> None:
    fs = disk_with(encode(make_rows(3), 3, LOG_ID, 77))
    with fs.open_read(PATH) as file, pytest.raises(DamagedFile, match="another segment"):
        KeyIndex(file, 4, LOG_ID, 77)


def test_version_1_stays_as_it_is() -> None:
    assert encode(make_rows(20), 3, LOG_ID, 77) == GOLDEN.read_bytes()
