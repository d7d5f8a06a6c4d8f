"""Entries of a piece of a segment, decoded on demand.

A piece of 1 MiB has thousands of small entries, and a new reader may take only the first few:
decoding all of them first would take longer than reading and checking the piece.

1. All frames are located and their CRCs checked beforehand (`scan.py`).
2. An access decodes the block of `BLOCK_ENTRIES` entries around the requested one.
3. Decoded entries are cached: a second access returns the same values.

The frames must be the last ones of their iterator, because their buffer stays in use here.
One thread at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import TYPE_CHECKING, overload

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lithify.log.segments.frame import LogEntry
    from lithify.log.segments.scan import Frames

__all__ = ["FrameEntries"]

BLOCK_ENTRIES = 256
"""About 0.3 ms: readers in an event loop decode one block at a time."""


class FrameEntries(Sequence["LogEntry"]):
    """A sequence of entries that is decoded block by block."""

    __slots__ = ("_blocks", "_frames")

    def __init__(self, frames: Frames) -> None:
        self._frames = frames
        self._blocks: dict[int, list[LogEntry]] = {}

    def __len__(self) -> int:
        return len(self._frames)

    @overload
    def __getitem__(self, index: int) -> LogEntry: ...

    @overload
    def __getitem__(self, index: slice) -> list[LogEntry]: ...

    def __getitem__(self, index: int | slice) -> LogEntry | list[LogEntry]:
        selected = range(len(self))[index]
        if isinstance(selected, range):
            return (
                [self[index] for index in selected]
                if selected.step < 0
                else self._decode_range(selected)
            )
        return self._block(selected // BLOCK_ENTRIES)[selected % BLOCK_ENTRIES]

    def find(self, position: int) -> int:
        """Index of the first entry at or above a position; decodes none."""
        return int(np.searchsorted(self._frames.positions, position))

    def __iter__(self) -> Iterator[LogEntry]:
        return chain.from_iterable(map(self._block, range(-(-len(self) // BLOCK_ENTRIES))))

    def _decode_range(self, selected: range) -> list[LogEntry]:
        if not selected:
            return []
        first, last = selected[0] // BLOCK_ENTRIES, selected[-1] // BLOCK_ENTRIES
        entries = list(chain.from_iterable(map(self._block, range(first, last + 1))))
        start = first * BLOCK_ENTRIES
        return entries[selected[0] - start : selected[-1] - start + 1 : selected.step]

    def _block(self, number: int) -> list[LogEntry]:
        block = self._blocks.get(number)
        if block is None:
            first = number * BLOCK_ENTRIES
            frames = self._frames.select(slice(first, first + BLOCK_ENTRIES))
            block = self._blocks[number] = list(frames.entries())
        return block
