"""Encodes many bodies as frames at once, for `Log.append_many`.

1. The bodies are joined into one buffer with space for a header before each: the only copy. Bodies
   that already share a buffer, such as one read from a socket, are passed as `Slices` of it: then
   compiled code copies them without creating an object per body. Large bodies are not copied; only
   their headers are built.
2. Compiled code fills in the headers, CRCs included, piece by piece: a batch larger than the rest
   of the segment is written in several pieces, and the headers depend on the piece.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from lithify.errors import InvalidInput, PositionOutOfRange
from lithify.log.segments import frame_kernels
from lithify.log.segments.frame import FLAGS_MAX, HEADER_BYTES, TAG_MAX, TIME_MS_MAX, check_fields

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from lithify.checksum import Buffer

__all__ = ["LARGE_BYTES", "EncodedFrames", "FrameBatch", "Slices", "size_of"]

LARGE_BYTES = 2**16
"""Bodies of this size are not copied: an additional buffer in the system call costs less, and
joining CRCs (about a microsecond) is cheaper than another pass over the bytes (about three)."""


@dataclass(frozen=True, slots=True)
class Slices:
    """Bodies in one buffer, `data[starts[i]:stops[i]]` each; the buffer must not change."""

    data: NDArray[np.uint8]
    starts: NDArray[np.int64]
    stops: NDArray[np.int64]
    crcs: NDArray[np.int64]
    """CRC-32C of each body, if the caller has just checked it; -1 where it must be computed."""

    def __len__(self) -> int:
        return len(self.starts)

    def lengths(self) -> NDArray[np.int64]:
        """The length of each; raises `InvalidInput` if a body is not inside the buffer."""
        if not len(self.starts) == len(self.stops) == len(self.crcs):
            raise InvalidInput("bodies need as many starts as stops and CRCs")
        lengths = self.stops - self.starts
        if len(lengths) and (
            int(lengths.min()) < 0
            or int(self.starts.min()) < 0
            or int(self.stops.max()) > self.data.size
        ):
            raise InvalidInput(f"bodies are not inside their buffer of {self.data.size} bytes")
        return lengths


@dataclass(frozen=True, slots=True)
class EncodedFrames:
    """Consecutive encoded frames, in buffers to be written one after the other."""

    buffers: list[memoryview]
    size: int
    positions: NDArray[np.int64]
    offsets: NDArray[np.int64]
    times: NDArray[np.int64]


class FrameBatch:
    """Bodies and their metadata, validated, and consumed from the front piece by piece."""

    def __init__(
        self,
        bodies: Sequence[Buffer] | Slices,
        times: int | Sequence[int] | NDArray[np.int64],
        flags: int | Sequence[int] | NDArray[np.int64],
        tags: int | Sequence[int] | NDArray[np.int64],
        positions: Sequence[int] | NDArray[np.int64] | None,
        body_bytes_max: int,
    ) -> None:
        count = len(bodies)
        self._slices = bodies if isinstance(bodies, Slices) else None
        self._frames = bytearray()
        if isinstance(bodies, Slices):
            self._lengths = bodies.lengths()
        else:
            self._lengths = np.fromiter(map(len, bodies), dtype=np.int64, count=count)
            # The empty body in front adds the space for the first header.
            self._frames = bytearray(HEADER_BYTES).join([b"", *bodies])
        self._times = _column("times", times, count, TIME_MS_MAX)
        self._flags = _column("flags", flags, count, FLAGS_MAX)
        self.flags = flags if isinstance(flags, int) else int(np.bitwise_or.reduce(self._flags))
        """Union of the flags of the entries."""
        self._tags = _column("tags", tags, count, TAG_MAX)
        self._positions = None
        if positions is not None:
            self._positions = _column("positions", positions, count, 2**63 - 1)
            if count > 1 and not (np.diff(self._positions) > 0).all():
                first = int(np.flatnonzero(np.diff(self._positions) <= 0)[0])
                raise PositionOutOfRange(
                    int(self._positions[first + 1]), f"above {int(self._positions[first])}"
                )
        if count:
            check_fields(int(self._lengths.max()), 0, 0, 0, 0, body_bytes_max)
        self._sizes = self._lengths + HEADER_BYTES
        self._ends = self._sizes.cumsum()
        self._taken = 0

    def __len__(self) -> int:
        return len(self._lengths) - self._taken

    @property
    def next_size(self) -> int:
        """Size of the next frame."""
        return int(self._sizes[self._taken])

    @property
    def next_position(self) -> int | None:
        """The position that the caller chose for the next body, if any."""
        return None if self._positions is None else int(self._positions[self._taken])

    def take(
        self, room: int, first_position: int, position_limit: int, synced: int
    ) -> EncodedFrames:
        """Encode and remove as many bodies as fit into `room` bytes, at least one."""
        at = self._taken
        start = int(self._ends[at - 1]) if at else 0
        stop = max(at + 1, int(self._ends.searchsorted(start + room, side="right")))
        if self._positions is None:
            stop = min(stop, at + position_limit - first_position + 1)
            positions = np.arange(first_position, first_position + stop - at, dtype=np.int64)
        else:
            within = int(np.searchsorted(self._positions, position_limit, side="right"))
            stop = min(stop, within)
            positions = self._positions[at:stop]
        size = int(self._ends[stop - 1]) - start
        offsets = self._ends[at:stop] - self._sizes[at:stop] - start
        buffers = self._encode(at, stop, start, size, positions, synced)
        self._taken = stop
        return EncodedFrames(buffers, size, positions, offsets, self._times[at:stop])

    def _encode(
        self, at: int, stop: int, start: int, size: int, positions: NDArray[np.int64], synced: int
    ) -> list[memoryview]:
        lengths = self._lengths[at:stop]
        stamps = self._times[at:stop] << 16 | self._flags[at:stop]
        tags = self._tags[at:stop]
        if self._slices is None:
            frames = np.frombuffer(self._frames, np.uint8, size, start)
        else:
            data, starts = self._slices.data, self._slices.starts[at:stop]
            if size >= LARGE_BYTES * (stop - at):
                headers = np.empty(HEADER_BYTES * (stop - at), dtype=np.uint8)
                crcs = self._slices.crcs[at:stop]
                frame_kernels.make_headers(
                    headers, data, starts, lengths, crcs, positions, stamps, tags, synced
                )
                return _in_turn(headers.data, data.data, starts.tolist(), lengths.tolist())
            frames = np.empty(size, dtype=np.uint8)
            frame_kernels.spread(frames, data, starts, lengths)
        frame_kernels.fill_headers(frames, lengths, positions, stamps, tags, synced)
        return [frames.data]


def _in_turn(
    headers: memoryview, data: memoryview, starts: list[int], lengths: list[int]
) -> list[memoryview]:
    """Header, body, header, body, …."""
    buffers = []
    for i, (start, length) in enumerate(zip(starts, lengths, strict=True)):
        buffers += [
            headers[HEADER_BYTES * i : HEADER_BYTES * (i + 1)],
            data[start : start + length],
        ]
    return buffers


def size_of(bodies: Sequence[Buffer] | Slices) -> int:
    """Total length of the bodies."""
    if isinstance(bodies, Slices):
        return int((bodies.stops - bodies.starts).sum())
    return sum(map(len, bodies))


def _column(
    name: str, value: int | Sequence[int] | NDArray[np.int64], count: int, high: int
) -> NDArray[np.int64]:
    if isinstance(value, int):
        if not 0 <= value <= high:
            raise InvalidInput(f"{name} must be from 0 to {high}, found {value}")
        return np.full(count, value, dtype=np.int64)
    try:
        column = np.ascontiguousarray(value, dtype=np.int64)
    except OverflowError:
        raise InvalidInput(f"{name} must be from 0 to {high}, found one of over 63 bits") from None
    if column.shape != (count,):
        raise InvalidInput(f"{name}: {len(column)} values for {count} bodies")
    # Every limit is a power of two minus one: the OR of all values tells, in one pass.
    if not 0 <= int(np.bitwise_or.reduce(column)) <= high:
        raise InvalidInput(f"{name} must be from 0 to {high}, found {column.min()}…{column.max()}")
    return column
