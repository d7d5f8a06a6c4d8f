"""What the newest snapshot of each group needs from the log, for the parts that drop entries.

One row per group: snapshot index, live indexes at or below it, and the smallest index that may be
read. The write-ahead log drops writes below `smallest`. The segment writer writes only live indexes
at or below the snapshot, and everything above it. A row is replaced and read as a whole, so the
three values always belong together.

Any thread may read; the group's thread writes its row.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lithify.errors import InvalidInput
from lithify.live_set import LiveSet

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["NO_SNAPSHOT", "LiveState", "LiveStates"]


@dataclass(frozen=True, slots=True)
class LiveState:
    """A snapshot's index and its live indexes; see the module."""

    snapshot_index: int = 0
    """0 before the first snapshot: the first entry of a log is 1."""
    live: LiveSet = field(default_factory=LiveSet.empty)

    def __post_init__(self) -> None:
        last = self.live.last
        if last is not None and last > self.snapshot_index:
            what = f"index {last} is said to be live at snapshot {self.snapshot_index}"
            raise InvalidInput(f"{what}, which ends before it")

    @property
    def smallest(self) -> int:
        """No index below it is needed."""
        first = self.live.first
        return self.snapshot_index + 1 if first is None else first

    def needs(self, index: int) -> bool:
        """May this index be read?"""
        return index > self.snapshot_index or index in self.live

    def needed(self, first: int, last: int) -> Iterator[int]:
        """The indexes in [first, last] that may be read, ascending."""
        if first <= self.snapshot_index:
            yield from self.live.slice(first, min(last, self.snapshot_index) + 1)
        yield from range(max(first, self.snapshot_index + 1), last + 1)


NO_SNAPSHOT = LiveState()


class LiveStates:
    """The rows of all groups of a node."""

    def __init__(self) -> None:
        self._rows: dict[str, LiveState] = {}

    def __getitem__(self, group: str) -> LiveState:
        """The row of a group; one without a snapshot needs everything."""
        return self._rows.get(group, NO_SNAPSHOT)

    def __setitem__(self, group: str, state: LiveState) -> None:
        self._rows[group] = state

    def remove(self, group: str) -> None:
        """A group was removed."""
        self._rows.pop(group, None)
