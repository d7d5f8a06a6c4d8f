"""The state of a metastore in memory: what one replica knows after the commands it has applied.

It follows the rules of the metastore (`metastore/metastore.py`) and nothing else: no bytes, no log,
no disk. A command is a function of the state and its index, so each replica that applies the same
commands has the same state, and a replica that is behind is one that has applied fewer.

History is purged at once when the floor rises, by the rule of the metastore: what is visible above
the floor stays. For a key with `r` its newest revision at or below the floor: a tombstone at `r`,
or a next revision of exactly floor + 1, drops all up to `r`; otherwise all below `r` are dropped.

Used by `memory_metastore.py` only.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from dataclasses import dataclass
from heapq import merge
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from lithify.hybrid_time import timestamp
from lithify.metastore.errors import (
    LeaseNotFound,
    RevisionCompacted,
    RevisionNotReached,
    TimeCompacted,
)
from lithify.metastore.metastore import Change, KeyValue, Lease, Outcome, Revision, Rows
from lithify.metastore.transaction import (
    Compare,
    Condition,
    Delete,
    Operation,
    Put,
    Transaction,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["MemoryState"]


class _Entry(NamedTuple):
    """A change of a key; a tombstone has no value."""

    revision: int
    value: bytes | None
    lease: int


@dataclass(slots=True)
class _LeaseState:
    ttl_ms: int
    generation: int
    keys: set[bytes]


class MemoryState:
    """See the module. Not shared between replicas."""

    def __init__(self) -> None:
        self.revision = 0
        self.floor = 0
        self.time = 0
        self._histories: dict[bytes, list[_Entry]] = {}
        self._keys: list[bytes] = []
        """All that have a history, ascending."""
        self._present: list[bytes] = []
        """Those that exist at the newest revision, ascending."""
        self._timestamps: dict[int, int] = {}
        self._changed: dict[int, tuple[bytes, ...]] = {}
        self._revisions: list[int] = []
        self._leases: dict[int, _LeaseState] = {}

    # -- commands: the same result on every replica

    def advance(self, time_ms: int) -> None:
        """The time of the next command; each command begins with it."""
        self.time = max(self.time + 1, timestamp(time_ms))

    def reach(self, time: int) -> None:
        """The time is at least this."""
        self.time = max(self.time, time)

    def revision_at(self, time: int) -> int:
        """The newest revision at a time."""
        known = [each for each in self._revisions if self._timestamps[each] <= time]
        if self.floor and max(known, default=0) <= self.floor:
            raise TimeCompacted(time)
        return max(known, default=0)

    def transact(self, index: int, transaction: Transaction) -> Outcome:
        """Execute a transaction as the command of this index."""
        succeeded = all(self._holds(each) for each in transaction.compares)
        branch = transaction.then if succeeded else transaction.otherwise
        changed = self._change(index, self._changes_of(branch))
        return Outcome(succeeded, self.revision, self.time, changed)

    def compact(self, revision: int) -> None:
        """Raise the floor, and drop what is not visible above it."""
        if revision <= self.floor:
            return
        if revision > self.revision:
            raise RevisionNotReached(revision, self.revision)
        self.floor = revision
        for key in list(self._keys):
            self._purge(key)
        kept = {entry.revision for history in self._histories.values() for entry in history}
        self._timestamps = {r: t for r, t in self._timestamps.items() if r in kept}
        self._changed = {r: keys for r, keys in self._changed.items() if r > revision}
        self._revisions = [r for r in self._revisions if r > revision]

    def grant(self, index: int, ttl_ms: int) -> Lease:
        """A new lease; its id is the index."""
        self._leases[index] = _LeaseState(ttl_ms, 1, set())
        return Lease(index, ttl_ms, 1)

    def keep(self, lease: int) -> Lease | None:
        """The next generation of a lease; None if it has ended."""
        found = self._leases.get(lease)
        if found is None:
            return None
        found.generation += 1
        return Lease(lease, found.ttl_ms, found.generation)

    def end_lease(self, index: int, lease: int, generation: int = 0) -> None:
        """End a lease and delete its keys; with a generation, only if that is its newest."""
        found = self._leases.get(lease)
        if found is None or (generation and found.generation != generation):
            return
        keys = sorted(found.keys)
        self._change(index, dict.fromkeys(keys))
        del self._leases[lease]

    # -- queries

    def leases(self) -> list[Lease]:
        """All leases."""
        return [Lease(id_, each.ttl_ms, each.generation) for id_, each in self._leases.items()]

    def get(self, key: bytes, revision: int) -> KeyValue | None:
        """A key at a revision; 0 is the newest."""
        return self._visible(key, self._checked(revision))

    def range(self, start: bytes, end: bytes, revision: int, limit: int) -> Rows:
        """The keys of a range at a revision."""
        at = self._checked(revision)
        rows: list[KeyValue] = []
        for key in self._keys_in(self._keys if revision else self._present, start, end):
            row = self._visible(key, at)
            if row is None:
                continue
            if len(rows) == limit:
                return Rows(at, self.time, tuple(rows), more=True)
            rows.append(row)
        return Rows(at, self.time, tuple(rows))

    def changes(self, start: bytes, end: bytes, after: int, maximum: int) -> list[Revision]:
        """The first revisions above `after` that change the range."""
        if after < self.floor:
            raise RevisionCompacted(after + 1, self.floor)
        found: list[Revision] = []
        for revision in self._revisions[bisect_right(self._revisions, after) :]:
            changes = tuple(
                Change(key, self._value_set_by(key, revision))
                for key in self._changed[revision]
                if start <= key and (not end or key < end)
            )
            if changes:
                found.append(Revision(revision, self._timestamps[revision], changes))
                if len(found) == maximum:
                    break
        return found

    # -- internals

    def _checked(self, revision: int) -> int:
        if revision == 0:
            return self.revision
        if revision <= self.floor:
            raise RevisionCompacted(revision, self.floor)
        if revision > self.revision:
            raise RevisionNotReached(revision, self.revision)
        return revision

    def _keys_in(self, keys: list[bytes], start: bytes, end: bytes) -> Iterator[bytes]:
        stop = bisect_left(keys, end) if end else len(keys)
        for place in range(bisect_left(keys, start), stop):
            yield keys[place]

    def _visible(self, key: bytes, at: int) -> KeyValue | None:
        history = self._histories.get(key, [])
        place = bisect_right(history, at, key=lambda entry: entry.revision) - 1
        if place < 0:
            return None
        revision, value, lease = history[place]
        if value is None:
            return None
        return KeyValue(key, value, revision, self._timestamps.get(revision, 0), lease)

    def _value_set_by(self, key: bytes, revision: int) -> bytes | None:
        history = self._histories[key]
        return history[bisect_left(history, revision, key=lambda entry: entry.revision)].value

    def _holds(self, compare: Compare) -> bool:  # noqa: PLR0911  (one of each kind)
        found = self._visible(compare.key, self.revision)
        history = self._histories.get(compare.key, [])
        newest = history[-1].revision if history else 0
        match compare.condition:
            case Condition.ABSENT:
                return found is None
            case Condition.PRESENT:
                return found is not None
            case Condition.REVISION:
                return (0 if found is None else found.revision) == compare.revision
            case Condition.REVISION_AT_MOST:
                return found is None or newest <= compare.revision
            case Condition.VALUE:
                return found is not None and found.value == compare.value
            case Condition.TIME_BELOW:
                return self.time < compare.time
            case Condition.RANGE_UNCHANGED:
                if compare.revision < self.floor:
                    return False
                return not self.changes(compare.key, compare.end, compare.revision, 1)

    def _changes_of(self, operations: tuple[Operation, ...]) -> dict[bytes, Put | None]:
        """The change of each key; the last operation on a key decides."""
        changes: dict[bytes, Put | None] = {}

        for each in operations:
            if isinstance(each, Put):
                if each.lease and each.lease not in self._leases:
                    raise LeaseNotFound(each.lease)
                changes[each.key] = each
            elif isinstance(each, Delete):
                changes[each.key] = None
            else:
                there = self._keys_in(self._present, each.start, each.end)
                untouched = (key for key in there if key not in changes)
                put = sorted(key for key, new in changes.items() if new and each.start <= key)
                put = [key for key in put if not each.end or key < each.end]
                for key in list(islice(merge(untouched, put), each.keys_max)):
                    changes[key] = None
        return changes

    def _change(self, index: int, changes: dict[bytes, Put | None]) -> bool:
        """Make a revision of the changes, if they change anything."""
        now = self.revision
        real = {
            key: put
            for key, put in changes.items()
            if put is not None or self._visible(key, now) is not None
        }
        if not real:
            return False
        self.revision = index
        self._revisions.append(index)
        self._timestamps[index] = self.time
        self._changed[index] = tuple(sorted(real))
        for key, put in real.items():
            if key not in self._histories:
                insort(self._keys, key)
            history = self._histories.setdefault(key, [])
            if history and history[-1].lease in self._leases:
                self._leases[history[-1].lease].keys.discard(key)
            if put is None:
                history.append(_Entry(index, None, 0))
                del self._present[bisect_left(self._present, key)]
                continue
            if self._visible(key, now) is None:
                insort(self._present, key)
            history.append(_Entry(index, put.value, put.lease))
            if put.lease:
                self._leases[put.lease].keys.add(key)
        return True

    def _purge(self, key: bytes) -> None:
        history = self._histories[key]
        place = bisect_right(history, self.floor, key=lambda entry: entry.revision) - 1
        if place < 0:
            return
        follows = place + 1 < len(history) and history[place + 1].revision == self.floor + 1
        drop = place + 1 if history[place].value is None or follows else place
        del history[:drop]
        if not history:
            del self._histories[key]
            del self._keys[bisect_left(self._keys, key)]
