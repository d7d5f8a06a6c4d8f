"""Entries that machines have read from segments, the last ones, of all groups of a node.

    recent.put(owner, entries)
    recent.get(owner, index)

To read an entry of a segment a thread reads its block, which has a hundred others. An entry that is
read again is here, up to `bytes_max` in all: the one that was not used for longest goes first.

Only entries that were applied may be put: those never change. An `owner` is any object that lives
as long as the group is open; entries of one that is gone go with time.

Called in the node's thread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lithify.raft.entry import Entry

__all__ = ["RecentEntries"]

BYTES_MAX = 32 * 2**20
ENTRY_BYTES_MAX = 2**18
"""A larger one would take the place of thousands."""
OVERHEAD_BYTES = 300
"""Of an entry: its objects and its place here."""


class RecentEntries:
    """See the module."""

    def __init__(self, bytes_max: int = BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._entries: dict[tuple[object, int], Entry] = {}
        """In the order of their last use."""

    def get(self, owner: object, index: int) -> Entry | None:
        """The entry, if it is here."""
        key = (owner, index)
        found = self._entries.pop(key, None)
        if found is not None:
            self._entries[key] = found
        return found

    def put(self, owner: object, entries: Iterable[Entry]) -> None:
        """Add entries that are not here."""
        for entry in entries:
            key = (owner, entry.index)
            if key not in self._entries and len(entry.payload) <= ENTRY_BYTES_MAX:
                self._entries[key] = entry
                self._bytes += len(entry.payload) + OVERHEAD_BYTES
        while self._bytes > self._bytes_max:
            oldest = self._entries.pop(next(iter(self._entries)))
            self._bytes -= len(oldest.payload) + OVERHEAD_BYTES
