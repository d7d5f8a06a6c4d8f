"""Turning many bodies into frames at once, for `Log.append_many`.

1. The bodies are joined into one buffer with room for a header before each: the only copy made.
2. Compiled code fills the headers in, CRCs included, piece by piece: a batch larger than what is
   left of the segment goes in several pieces, and only then is it known what stands in a header.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from lithify.errors import InvalidInput, PositionOutOfRange
from lithify.log import kernels
from lithify.log.frame import FLAGS_MAX, HEADER_BYTES, TAG_MAX, TIME_MS_MAX, check_fields

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from lithify.checksum import Buffer

__all__ = ["Batch", "Piece"]


@dataclass(frozen=True, slots=True)
class Piece:
    """Encoded frames, side by side."""

    frames: memoryview
    positions: NDArray[np.int64]
    offsets: NDArray[np.int64]
    times: NDArray[np.int64]


class Batch:
    """Bodies and what goes with them, checked, and taken piece by piece from the front."""

    def __init__(
        self,
        bodies: Sequence[Buffer],
        times: int | Sequence[int] | NDArray[np.int64],
        flags: int | Sequence[int] | NDArray[np.int64],
        tags: int | Sequence[int] | NDArray[np.int64],
        positions: Sequence[int] | NDArray[np.int64] | None,
        body_bytes_max: int,
    ) -> None:
        count = len(bodies)
        self._lengths = np.fromiter(map(len, bodies), dtype=np.int64, count=count)
        self._times = _column("times", times, count, TIME_MS_MAX)
        self._flags = _column("flags", flags, count, FLAGS_MAX)
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
        # The empty body in front brings the room for the first header.
        self._frames = bytearray(HEADER_BYTES).join([b"", *bodies])
        self._taken = 0

    def __len__(self) -> int:
        return len(self._lengths) - self._taken

    @property
    def next_size(self) -> int:
        """Bytes of the next frame."""
        return int(self._sizes[self._taken])

    @property
    def next_position(self) -> int | None:
        """The position that the caller gave for the next body, if any."""
        return None if self._positions is None else int(self._positions[self._taken])

    def take(self, room: int, first_position: int, position_limit: int, synced: int) -> Piece:
        """Encode as many bodies as fit into `room` bytes (at least one) and drop them."""
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
        frames = memoryview(self._frames)[start : int(self._ends[stop - 1])]
        times = self._times[at:stop]
        kernels.fill_headers(
            np.frombuffer(frames, dtype=np.uint8),
            self._lengths[at:stop],
            positions,
            times << 16 | self._flags[at:stop],
            self._tags[at:stop],
            synced,
        )
        self._taken = stop
        offsets = self._ends[at:stop] - self._sizes[at:stop] - start
        return Piece(frames, positions, offsets, times)


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
    if count and not (int(column.min()) >= 0 and int(column.max()) <= high):
        raise InvalidInput(f"{name} must be from 0 to {high}, found {column.min()}…{column.max()}")
    return column
