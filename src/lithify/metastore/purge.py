"""Removes what no read at or above the floor can see, in small batches. Pure.

Of a key with r, its newest revision at or below the floor F, the revisions at F + 1 and later stay
visible:

    r is a tombstone                    all revisions up to r go
    the next revision is exactly F + 1  all revisions up to r go
    otherwise                           all revisions below r go: r is visible at F + 1

Every revision up to F + 1 is examined once, in order. A change of a key makes the earlier revisions
of that key superfluous; a deletion up to F is superfluous itself. So the cost follows the changes,
not the keys. F + 1 is examined again after the floor was raised, because its deletions go then.

The machine calls it, in its group's thread; members do it at their own times.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lithify.metastore.state import MetastoreState

__all__ = ["Purged", "Superfluous", "count_superfluous", "purge_state"]


@dataclass(frozen=True, slots=True)
class Purged:
    """What one batch has done."""

    examined: int
    """Changes of keys."""
    removed: int
    """Values and tombstones."""
    finished: bool
    """There is nothing left to do below the floor."""


@dataclass(frozen=True, slots=True)
class Superfluous:
    """What a purge would remove if the floor rose: a page of the count."""

    revisions: int = 0
    """That can no longer be read."""
    values: int = 0
    tombstones: int = 0
    value_bytes: int = 0
    next_revision: int = 0
    """Where the next page begins; 0 after the last page."""
    next_change: int = 0
    """And the number of its changes that are counted."""

    def plus(self, page: Superfluous) -> Superfluous:
        """With the next page."""
        return Superfluous(
            self.revisions + page.revisions,
            self.values + page.values,
            self.tombstones + page.tombstones,
            self.value_bytes + page.value_bytes,
            page.next_revision,
            page.next_change,
        )


def count_superfluous(
    state: MetastoreState, floor: int, revision: int, change: int, changes_max: int
) -> Superfluous:
    """Count what a purge would remove at a floor, from a change of a revision on; 0 is the first.

    Each change of a key hides the revision before it.
    """
    columns = state.revisions
    row = columns.row_above(revision - 1 if revision else state.purged)
    revisions = values = tombstones = value_bytes = examined = 0
    while row < len(columns) and columns.numbers[row] <= floor + 1:
        number = columns.numbers[row]
        start, stop = columns.change_bounds(row)
        at = min(start + change, stop)
        end = min(stop, at + changes_max - examined)
        for key, has_value in zip(columns.keys[at:end], columns.has_value[at:end], strict=True):
            hidden = state.keys.before(key, number)
            if hidden is not None and not hidden.is_tombstone:
                values += 1
                value_bytes += hidden.value_bytes
            tombstones += not has_value and number <= floor
        examined += end - at
        if end < stop:
            return Superfluous(revisions, values, tombstones, value_bytes, number, end - start)
        revisions += state.floor < number <= floor
        row, change = row + 1, 0
    return Superfluous(revisions, values, tombstones, value_bytes, 0, 0)


def purge_state(state: MetastoreState, changes_max: int) -> Purged:
    """Examine this number of changes, or all."""
    columns, floor = state.revisions, state.floor
    examined = forgotten = 0
    rows_before = state.keys.row_count
    row = columns.row_above(state.purged)
    while state.purged_floor < floor and examined < changes_max:
        if row == len(columns) or columns.numbers[row] > floor + 1:
            state.end_purge()
            break
        number = columns.numbers[row]
        start, stop = columns.change_bounds(row)
        at = start + state.purged_changes
        end = min(stop, at + changes_max - examined)
        for key, has_value in zip(columns.keys[at:end], columns.has_value[at:end], strict=True):
            is_superfluous = not has_value and number <= floor
            forgotten += state.drop_values(key, number if is_superfluous else number - 1)
        examined += end - at
        if end < stop:
            state.purged_changes = end - start
        elif number > floor:
            state.end_purge()
        else:
            state.purged, state.purged_changes = number, 0
            forgotten += not columns.values[row]
            row += 1
    columns.forget(forgotten, state.purged)
    return Purged(examined, rows_before - state.keys.row_count, state.purged_floor == floor)
