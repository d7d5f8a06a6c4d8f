"""The bytes of the write-ahead log.

    header (32 bytes)   little-endian
         0     8  magic     "LITHWAL" and a zero byte
         8     4  version   1
        12     4  zero
        16     8  number    the file's own
        24     4  zero
        28     4  crc       CRC-32C of bytes 0 … 28
    batches, each written by one call and followed by an fdatasync
         0     4  crc       CRC-32C of bytes 4 … 24+length
         4     4  length    bytes of all records
         8     8  sequence  1 for the first batch of the file, one more for each
        16     4  records
        20     4  zeros     sectors of zeros among the records, n: n and its complement, two bytes
                            each; 0 if there are none, or if an earlier version wrote it
        24        records, each
             0     1  kind      1 group, 2 state, 3 entry
             1     1  entry's kind, as the consensus core numbers it
             2     2  zero
             4     4  group     the group's number in this file
             8     8  index     of an entry: its index; of a state: the commit index
            16     8  term      of the entry or state
            24     8  previous  index of the entry written before this one, -1 if none
            32     4  length    of an entry: its payload; of a group: its name; of a state: the
                                name of the member that got the vote
            36  length

The first record of a group in a file is a group record. Every entry carries the index that was
written before it, so a gap is detected whether the indexes are contiguous or sparse.

A batch has one CRC, because it is durable as a whole or not at all. A batch is written after the
previous one is durable, so an intact batch proves that all before it are durable. A batch without
records has no other purpose. The bytes after the last intact batch (`WalTail`) are judged so:

1. A bad batch followed by an intact one is damage to acknowledged data: `DamagedFile`.
2. A complete batch whose bytes differ from those written is `DAMAGED`. A power cut does not leave
   such a batch: bytes that the disk has not written are missing at the end of the file, or read as
   zeros from one sector boundary to the next. So a batch with no more sectors of zeros than were
   written (`zeros`) is complete. Such a batch may have been acknowledged.
3. Anything else is `TORN`: the write was in progress, and was not acknowledged.

A sector that reads as zeros and was not written so is ambiguous: its write may have been in
progress, or the disk has lost it later. It counts as torn, because every member of a group may
have such a batch after a power cut. A batch with more than `ZEROS_MAX` sectors of zeros, or whose
count itself is damaged, counts as damaged: the number of its sectors of zeros is unknown.

A batch is complete if the length in its header ends within the file, or if as many records as the
header says, by their own lengths, end exactly at the end of the file. One wrong byte spoils at most
one of the two.

Pure.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum
from itertools import chain
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lithify.checksum import crc32c
from lithify.errors import DamagedFile, UnsupportedVersion

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from lithify.checksum import Buffer
    from lithify.raft.entry import Entry

__all__ = [
    "BATCH_HEADER_BYTES",
    "FILE_HEADER_BYTES",
    "RECORD_HEADER_BYTES",
    "Parsed",
    "RecordKind",
    "WalRecord",
    "WalTail",
    "encode_batch",
    "encode_file_header",
    "entry_records",
    "parse_batches",
    "record_header",
]

WAL_VERSION = 1
SECTOR_BYTES = 512
"""The unit that disks write as a whole. Larger sectors are multiples of it."""
ZEROS_MAX = 2**16 - 1
"""The highest count of sectors of zeros in a batch: nearly 32 MiB."""

_MAGIC = b"LITHWAL\0"
_FILE = struct.Struct("<8sIIQI")
_CRC = struct.Struct("<I")
_BATCH = struct.Struct("<IIQII")
_BATCH_TAIL = struct.Struct("<IQII")
_RECORD = struct.Struct("<BBHIQQqI")
_INDEX = attrgetter("index")
_PAYLOAD = attrgetter("payload")

FILE_HEADER_BYTES = _FILE.size + _CRC.size
BATCH_HEADER_BYTES = _BATCH.size
RECORD_HEADER_BYTES = _RECORD.size
assert (FILE_HEADER_BYTES, BATCH_HEADER_BYTES, RECORD_HEADER_BYTES) == (32, 24, 36)


class RecordKind(IntEnum):
    """The kinds of records."""

    GROUP = 1
    STATE = 2
    ENTRY = 3


@dataclass(frozen=True, slots=True)
class WalRecord:
    """A record read from a file."""

    kind: int
    entry_kind: int
    group: int
    index: int
    term: int
    previous: int
    payload: bytes


class WalTail(IntEnum):
    """The state of the bytes after the last intact batch of a file; see the module."""

    NOTHING = 0
    TORN = 1
    DAMAGED = 2


class Parsed(NamedTuple):
    """The content of a file."""

    batches: list[list[WalRecord]]
    end: int
    """Where the last intact batch ends; 0 without an intact header."""
    tail: WalTail


def encode_file_header(number: int) -> bytes:
    """The first bytes of a file."""
    data = _FILE.pack(_MAGIC, WAL_VERSION, 0, number, 0)
    return data + _CRC.pack(crc32c(data))


def record_header(
    kind: int, entry_kind: int, group: int, index: int, term: int, previous: int, length: int
) -> bytes:
    """The header before a record's payload."""
    return _RECORD.pack(kind, entry_kind, 0, group, index, term, previous, length)


def entry_records(group: int, entries: Sequence[Entry], previous: int) -> Iterator[bytes]:
    """The headers and payloads, in turn, of entries of which the first follows `previous`."""
    pack, kind = _RECORD.pack, int(RecordKind.ENTRY)
    before = chain((previous,), map(_INDEX, entries))
    headers = [
        pack(kind, entry_kind, 0, group, index, term, follows, len(payload))
        for (index, term, payload, entry_kind), follows in zip(entries, before, strict=False)
    ]
    return chain.from_iterable(zip(headers, map(_PAYLOAD, entries), strict=True))


def encode_batch(at: int, sequence: int, records: int, pieces: Sequence[Buffer]) -> bytearray:
    """A batch for the offset `at` of a file; `pieces` are headers and payloads in turn."""
    batch = bytearray().join((bytes(BATCH_HEADER_BYTES), *pieces))
    length = len(batch) - BATCH_HEADER_BYTES
    zeros = min(_zero_sectors(batch, BATCH_HEADER_BYTES, at), ZEROS_MAX)
    counted = zeros | (ZEROS_MAX ^ zeros) << 16 if zeros else 0
    _BATCH_TAIL.pack_into(batch, _CRC.size, length, sequence, records, counted)
    with memoryview(batch)[_CRC.size :] as covered:
        _CRC.pack_into(batch, 0, crc32c(covered))
    return batch


def parse_batches(data: bytes, number: int, path: str) -> Parsed:
    """The records of each intact batch of a file, and the state of the bytes after them.

    Raises `DamagedFile` if an intact batch follows a bad one, or follows a bad header.
    """
    batches: list[list[WalRecord]] = []
    if not _has_header(data, number, path):
        if _find_batch(data, 0, 1) >= 0:
            raise DamagedFile(path, 0, "the header is damaged, but an intact batch follows")
        return Parsed(batches, 0, WalTail.TORN)
    at = FILE_HEADER_BYTES
    while (end := _end_of_batch(data, at, len(batches) + 1)) > 0:
        batches.append(_records(data, at + BATCH_HEADER_BYTES, end, path))
        at = end
    following = _find_batch(data, at, len(batches) + 2)
    if following >= 0:
        what = f"a batch is damaged, but an intact one follows at byte {following}"
        raise DamagedFile(path, at, what)
    return Parsed(batches, at, _tail(data, at))


def _tail(data: bytes, at: int) -> WalTail:
    if at == len(data):
        return WalTail.NOTHING
    start = at + BATCH_HEADER_BYTES
    if len(data) <= start:
        # A batch that ends within its header has no records to lose.
        return WalTail.TORN
    first_sector = data[at : min(start, at - at % SECTOR_BYTES + SECTOR_BYTES)]
    if len(first_sector) >= _CRC.size and not any(first_sector):
        return WalTail.TORN
    _, length, _, records, counted = _BATCH.unpack_from(data, at)
    is_complete = start + length <= len(data) or _fills(data, at, records)
    zeros, complement = counted & ZEROS_MAX, counted >> 16
    is_known = not counted or (zeros ^ complement == ZEROS_MAX and zeros < ZEROS_MAX)
    if is_complete and (not is_known or _zero_sectors(data, start) <= zeros):
        return WalTail.DAMAGED
    return WalTail.TORN


def _zero_sectors(data: bytes | bytearray, start: int, offset: int = 0) -> int:
    """The number of sectors of zeros after `start`. A part of a sector at either end counts as one.

    `offset` is the position of the first byte of `data` in the file.
    """
    first = min(len(data), start + -(offset + start) % SECTOR_BYTES)
    last = max(first, len(data) - (offset + len(data)) % SECTOR_BYTES)
    count = sum(
        low < high and not any(memoryview(data)[low:high])
        for low, high in ((start, first), (last, len(data)))
    )
    # Nearly always there are none, and a search is much faster than a test of each sector.
    if data.find(bytes(SECTOR_BYTES), first, last) < 0:
        return count
    sectors = np.frombuffer(data, np.uint8, last - first, first).reshape(-1, SECTOR_BYTES)
    return count + int(np.count_nonzero(~sectors.any(axis=1)))


def _fills(data: bytes, at: int, records: int) -> bool:
    """Does this number of records end exactly at the end of the file?"""
    at += BATCH_HEADER_BYTES
    for _ in range(records):
        if len(data) - at < RECORD_HEADER_BYTES:
            return False
        at += RECORD_HEADER_BYTES + _RECORD.unpack_from(data, at)[-1]
    return at == len(data)


def _has_header(data: bytes, number: int, path: str) -> bool:
    head = data[:FILE_HEADER_BYTES]
    if len(head) < FILE_HEADER_BYTES or crc32c(head[: _FILE.size]) != _CRC.unpack(head[-4:])[0]:
        return False
    magic, version, _, own_number, _ = _FILE.unpack_from(head)
    if magic != _MAGIC:
        return False
    if version != WAL_VERSION:
        raise UnsupportedVersion(path, version, WAL_VERSION)
    if own_number != number:
        raise DamagedFile(path, 16, f"is file {own_number} of the write-ahead log, not {number}")
    return True


def _end_of_batch(data: bytes, at: int, sequence: int) -> int:
    """The end of the batch at an offset; 0 if it is bad or has another sequence number."""
    if len(data) - at < BATCH_HEADER_BYTES:
        return 0
    crc, length, own_sequence, _, _ = _BATCH.unpack_from(data, at)
    end = at + BATCH_HEADER_BYTES + int(length)
    if own_sequence != sequence or end > len(data):
        return 0
    return end if crc32c(memoryview(data)[at + 4 : end]) == crc else 0


def _find_batch(data: bytes, at: int, sequence_min: int) -> int:
    """The start of an intact batch with a sequence of at least `sequence_min`; -1 if none."""
    limit = sequence_min + (len(data) - at) // BATCH_HEADER_BYTES
    for shift in range(8):
        start = at + 8 + shift
        words = np.frombuffer(data, "<u8", max(0, len(data) - start) // 8, min(start, len(data)))
        likely = np.flatnonzero((words >= sequence_min) & (words <= limit))
        for row in likely.tolist():
            if _end_of_batch(data, start - 8 + 8 * row, int(words[row])):
                return start - 8 + 8 * row
    return -1


def _records(data: bytes, at: int, end: int, path: str) -> list[WalRecord]:
    records = []
    while at < end:
        kind, entry_kind, _, group, index, term, previous, length = _RECORD.unpack_from(data, at)
        at += RECORD_HEADER_BYTES
        payload = data[at : at + length]
        records.append(WalRecord(kind, entry_kind, group, index, term, previous, payload))
        at += length
    if at != end:
        raise DamagedFile(path, at, "records do not fill their batch")
    return records
