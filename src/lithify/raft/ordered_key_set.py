"""The keys of a state in order, for scans; so that adding a key costs little. Pure.

1. `ordered` has the keys as of an earlier scan. Keys that were removed since are still in it, so a
   scan skips what the state does not have.
2. Keys that were added since are in a set. A scan inserts them, up to a bounded number; above that
   both are merged into a new list.
3. A loaded state has not sorted its keys; the first scan does.

A machine adds and discards keys in its group's thread.
"""

from __future__ import annotations

from bisect import bisect_left
from itertools import islice
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = ["Keys", "OrderedKeys", "prefix_end"]

ADDED_MAX, ADDED_SHARE = 1024, 64
"""Up to this number of new keys, or this share of all keys, each scan inserts the new keys: 3 ms
for a million keys. Above it all keys are sorted: 0.1 s of the thread that all groups share."""


class Keys(Protocol):
    """The keys that a state has."""

    def __len__(self) -> int: ...
    def __contains__(self, key: bytes, /) -> bool: ...
    def keys(self) -> Iterable[bytes]:
        """All keys, unordered."""


class OrderedKeys:
    """See the module."""

    def __init__(self, ordered: list[bytes] | None) -> None:
        """Of keys in order; None if the keys of the state are not sorted."""
        self._ordered = ordered
        self._added: set[bytes] = set()

    def add(self, key: bytes) -> None:
        """The state has a new key."""
        self._added.add(key)

    def discard(self, key: bytes) -> None:
        """The state does not have a key."""
        self._added.discard(key)

    def range(self, start: bytes, end: bytes, keys: Keys) -> Iterator[bytes]:
        """The keys of the state from `start` up to `end`, ascending; an empty `end` is no limit.

        The state must not change before the iterator is used up or dropped.
        """
        ordered = self._merged(keys)
        at = bisect_left(ordered, start)
        stop_at = bisect_left(ordered, end, at) if end else len(ordered)
        for new in sorted(key for key in self._added if key >= start and (key < end or not end)):
            stop = bisect_left(ordered, new, at)
            for key in islice(ordered, at, stop):
                if key in keys:
                    yield key
            yield new
            # A key that was removed and added again is in both.
            at = stop + (ordered[stop : stop + 1] == [new])
        for key in islice(ordered, at, stop_at):
            if key in keys:
                yield key

    def _merged(self, keys: Keys) -> list[bytes]:
        """Most keys in order, and some removed ones; a bounded number of keys is added since."""
        ordered, added = self._ordered, self._added
        if ordered is None or len(ordered) > 2 * len(keys):
            self._ordered, self._added = sorted(keys.keys()), set()
        elif len(added) > max(ADDED_MAX, len(ordered) // ADDED_SHARE):
            kept = [key for key in ordered if key not in added]
            # Two sorted runs: merging them is one pass.
            self._ordered, self._added = sorted([*kept, *sorted(added)]), set()
        assert self._ordered is not None
        return self._ordered


def prefix_end(prefix: bytes) -> bytes:
    """The end of the range of all keys with a prefix; empty if there is no limit."""
    kept = prefix.rstrip(b"\xff")
    return kept[:-1] + bytes((kept[-1] + 1,)) if kept else b""
