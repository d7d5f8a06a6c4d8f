"""The bytes of a live set, version 1. Little-endian.

    offset  size  field
         0     4  magic      "LSET"
         4     2  version    1
         6     2  zero
         8     8  ranges     number of ranges
        16     8  positions  number of members
        24     …  blocks     of 4096 ranges each, the last one with the remaining ones
       end     4  crc        CRC-32C of everything before it

    a block of n ranges
         0     8  first      start of its first range
         8     1  g          bytes per gap: 1, 2, 4 or 8
         9     1  e          bytes per extra: 1, 2, 4 or 8
        10  g(n-1)  gaps     positions absent between two neighbours, less one
         …    en  extras     members of each range after its first

Ten million scattered positions with gaps below 256 take 20 MB and 10 bytes per block.

Widths are the narrowest that fit the block, so equal sets have equal bytes. A block cannot express
an empty range or two ranges that touch. The reader checks everything else: blocks ascend and do not
touch, no position is above 2^63-1, both counts match, no byte is left over.

Every version keeps magic, version and the CRC in place and unchanged, so that a newer version can
be told from damage.

Pure: bytes in, arrays out. Only the live set calls it.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import numpy as np

from lithify.checksum import crc32c
from lithify.errors import DamagedFile, UnsupportedVersion
from lithify.live_set.ranges import RangeAssembler, narrowed

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lithify.checksum import Buffer
    from lithify.live_set.ranges import Positions, Unsigned

__all__ = ["BLOCK_RANGES", "VERSION", "decode", "encode"]

BLOCK_RANGES = 4096
VERSION = 1

_MAGIC = b"LSET"
_HEADER = struct.Struct("<4sHHQQ")
_BLOCK = struct.Struct("<QBB")
_CRC = struct.Struct("<I")
_WIDTHS_BYTES = (1, 2, 4, 8)


def encode(ranges: int, positions: int, blocks: Iterable[tuple[Positions, Positions]]) -> bytes:
    """The bytes of a set with these counts; `blocks` are starts and lasts, split as above."""
    parts = [_HEADER.pack(_MAGIC, VERSION, 0, ranges, positions)]
    for starts, lasts in blocks:
        gaps = narrowed(starts[1:] - lasts[:-1] - 2)
        extras = narrowed(lasts - starts)
        parts.append(_BLOCK.pack(starts[0], gaps.itemsize, extras.itemsize))
        parts += [_little_endian(gaps), _little_endian(extras)]
    crc = 0
    for part in parts:
        crc = crc32c(part, crc)
    parts.append(_CRC.pack(crc))
    return b"".join(parts)


def decode(data: Buffer, path: str) -> tuple[Positions, Unsigned]:
    """Starts and extras of the set; `path` is only named in errors."""
    end = len(data) - _CRC.size
    if end < _HEADER.size:
        raise DamagedFile(path, len(data), "ends inside the header of a live set")
    magic, version, zero, ranges, positions = _HEADER.unpack_from(data)
    if magic != _MAGIC:
        raise DamagedFile(
            path, 0, f"begins with {magic!r}, must begin with {_MAGIC!r}, the magic of a live set"
        )
    body = memoryview(data)[:end]
    (stored,) = _CRC.unpack_from(data, end)
    computed = crc32c(body)
    if stored != computed:
        raise DamagedFile(path, end, f"CRC of live set is {computed:08x}, stored {stored:08x}")
    if version != VERSION:
        raise UnsupportedVersion(path, version, VERSION)
    if zero:
        raise DamagedFile(path, 6, f"reserved bytes of live set are {zero}, not 0")
    assembler = RangeAssembler()
    at, count = _HEADER.size, 0
    for done in range(0, ranges, BLOCK_RANGES):
        starts, lasts, after = _decode_block(body, at, min(BLOCK_RANGES, ranges - done), path)
        if int(starts[0]) <= assembler.last + 1:
            what = f"block starts at {starts[0]}, the one before ends at {assembler.last}"
            raise DamagedFile(path, at, what)
        assembler.add(starts, lasts)
        count += int((lasts - starts).sum()) + starts.size
        at = after
    if at != end:
        raise DamagedFile(path, at, f"{end - at} bytes after the last of {ranges} ranges")
    if count != positions:
        raise DamagedFile(path, 16, f"live set has {count} positions, its header says {positions}")
    return assembler.finish()


def _decode_block(
    body: memoryview, at: int, size: int, path: str
) -> tuple[Positions, Positions, int]:
    """Starts and lasts of the block of `size` ranges at `at`, and the offset after it."""
    gaps_at = at + _BLOCK.size
    if gaps_at > len(body):
        raise DamagedFile(path, at, "live set ends before its last block")
    first, gap_bytes, extra_bytes = _BLOCK.unpack_from(body, at)
    if gap_bytes not in _WIDTHS_BYTES or extra_bytes not in _WIDTHS_BYTES:
        raise DamagedFile(path, at + 8, f"widths {gap_bytes} and {extra_bytes}, not 1, 2, 4 or 8")
    extras_at = gaps_at + gap_bytes * (size - 1)
    after = extras_at + extra_bytes * size
    if after > len(body):
        raise DamagedFile(
            path, at, f"block of {size} ranges ends at {after}, after the end of the file"
        )
    # The running sum of start, extra, gap, extra, … is every start and every last.
    hops = np.empty(2 * size, np.uint64)
    hops[0] = first
    hops[1::2] = np.frombuffer(body, f"<u{extra_bytes}", size, extras_at)
    hops[2::2] = np.frombuffer(body, f"<u{gap_bytes}", size - 1, gaps_at)
    signed = hops.view(np.int64)
    low = int(signed.min())
    signed[2::2] += 2
    # No hop and no sum is negative unless a number is above int64: the sum of two that are not
    # negative cannot wrap past the negative half.
    places = np.cumsum(signed)
    if min(low, int(signed.min()), int(places.min())) < 0:
        raise DamagedFile(path, at, "block goes beyond position 2^63-1")
    return places[0::2], places[1::2], after


def _little_endian(values: Unsigned) -> bytes:
    return values.astype(values.dtype.newbyteorder("<"), copy=False).tobytes()
