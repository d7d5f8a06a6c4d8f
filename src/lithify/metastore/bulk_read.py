"""Reads many values of a saved state at once: those of a range of keys at a revision. Pure.

    columns = read_columns(pieces)
    selected = select_values(columns, revision, low, high)
    for batch in read_values(selected, scan_segments(fs, directory, spans, selected.places)):
        ...                                 # values, one after the other, and their keys

A revision can be read if it is in the state and above the floor: whatever was put or removed later
changes nothing of it. `NotInState` names the limit otherwise.

The values are in the entries at `places` (`machine.py`). An entry that is missing is
`EntriesMissing`: it was deleted after the state was saved. One that cannot be parsed is damage.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from lithify.errors import LithifyError
from lithify.metastore.bulk_kernels import BROKEN, FULL, MISSING, collect, select

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import NDArray

    from lithify.log.segments.scan import Frames
    from lithify.metastore.state_columns import StateColumns

__all__ = [
    "EntriesMissing",
    "NotInState",
    "SelectedValues",
    "StateDamaged",
    "ValueBatch",
    "read_values",
    "select_values",
]

BATCH_ROWS = 1 << 16
BATCH_BYTES = 8 << 20
"""At least the bytes of one transaction."""


class NotInState(LithifyError):
    """A saved state does not have a revision, or has it no longer."""


class StateDamaged(LithifyError):
    """A saved state, or an entry that it names, is none."""


class EntriesMissing(LithifyError):
    """Entries with values of a saved state were deleted."""


@dataclass(frozen=True, slots=True)
class SelectedValues:
    """The keys of a range that have a value at a revision."""

    columns: StateColumns
    chosen: NDArray[np.int64]
    """Place of the value, number of the key, and whether it is in the second branch."""
    value_bytes: int

    def __len__(self) -> int:
        return len(self.places)

    @property
    def places(self) -> NDArray[np.int64]:
        """The indexes of the entries with the values, ascending; several values may be in one."""
        places: NDArray[np.int64] = self.chosen[0]
        return places

    @property
    def numbers(self) -> NDArray[np.int64]:
        """The numbers of the keys, in the same order."""
        numbers: NDArray[np.int64] = self.chosen[1]
        return numbers

    def without(self, keys: set[bytes]) -> SelectedValues:
        """The others than these keys."""
        if not keys:
            return self
        kept = np.fromiter((key not in keys for key in self.keys(self.numbers)), np.bool_)
        return SelectedValues(
            self.columns, np.ascontiguousarray(self.chosen[:, kept]), self.value_bytes
        )

    def keys(self, numbers: NDArray[np.int64]) -> list[bytes]:
        """The bytes of keys."""
        stops, data = self.columns.key_stops, self.columns.keys.data
        starts = np.where(numbers > 0, stops[numbers - 1], 0)
        spans = zip(starts.tolist(), stops[numbers].tolist(), strict=True)
        return [bytes(data[start:stop]) for start, stop in spans]


@dataclass(frozen=True, slots=True)
class ValueBatch:
    """Some values; valid until the next one is read, because the memory is reused."""

    data: NDArray[np.uint8]
    stops: NDArray[np.int64]
    """Where each value ends; the first begins at 0."""
    numbers: NDArray[np.int64]
    """The numbers of the keys, see `SelectedValues.keys`."""

    def __len__(self) -> int:
        return len(self.stops)


def select_values(columns: StateColumns, revision: int, low: bytes, high: bytes) -> SelectedValues:
    """The keys from `low` up to `high`, empty for no limit, that have a value at a revision."""
    if not columns.floor < revision <= columns.revision:
        what = f"a state of revisions {columns.floor + 1} to {columns.revision}"
        raise NotInState(f"{what} does not have revision {revision}")
    chosen, found, value_bytes = select(
        columns.keys,
        columns.key_stops,
        columns.row_counts,
        np.ascontiguousarray(columns.rows["revision"]),
        np.ascontiguousarray(columns.rows["value_bytes"]),
        columns.numbers,
        columns.places,
        columns.change_stops,
        columns.otherwise,
        columns.changed,
        revision,
        np.frombuffer(low, np.uint8),
        np.frombuffer(high, np.uint8),
    )
    if chosen.shape[1] != found:
        raise StateDamaged(
            f"a state has {found} values at {revision}, {chosen.shape[1]} with a place"
        )
    if not np.all(chosen[0, :-1] <= chosen[0, 1:]):
        # A revision was rewritten: its place is above those of later ones.
        chosen = np.ascontiguousarray(chosen[:, np.argsort(chosen[0], kind="stable")])
    return SelectedValues(columns, chosen, int(value_bytes))


def read_values(selected: SelectedValues, pieces: Iterable[Frames]) -> Iterator[ValueBatch]:
    """The selected values, out of frames that have at least their entries, in their order."""
    keys, stops = selected.columns.keys, selected.columns.key_stops
    out = np.empty(min(BATCH_BYTES, max(selected.value_bytes, 1)), np.uint8)
    ends = np.empty(min(BATCH_ROWS, max(len(selected), 1)), np.int64)
    cursor = filled = 0
    for frames in pieces:
        frame = 0
        while True:
            status, frame, cursor, filled = collect(
                frames.buffer,
                frames.offsets,
                frames.positions,
                frame,
                selected.chosen,
                cursor,
                keys,
                stops,
                out,
                ends,
                filled,
            )
            if status != FULL:
                break
            yield _batch(selected, out, ends, cursor, filled)
            filled = 0
        if status == BROKEN:
            raise StateDamaged(f"entry {frames.positions[frame]} is no command of a store")
        if status == MISSING:
            break
    if filled:
        yield _batch(selected, out, ends, cursor, filled)
    if cursor < len(selected):
        raise EntriesMissing(f"entry {selected.places[cursor]} was deleted")


def _batch(
    selected: SelectedValues,
    out: NDArray[np.uint8],
    ends: NDArray[np.int64],
    cursor: int,
    filled: int,
) -> ValueBatch:
    size = int(ends[filled - 1])
    return ValueBatch(out[:size], ends[:filled], selected.chosen[1, cursor - filled : cursor])
