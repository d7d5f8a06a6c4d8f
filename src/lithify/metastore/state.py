"""The state of the metastore's machine: keys, revisions, leases, floor, time. Pure.

It has no values: those stay in the log. Of every retained revision it has the place, which is the
index of the entry with its values; of every key its retained revisions.

What a member retains below the floor depends on how far it has purged; no answer does. So whatever
`apply` decides must not depend on it either.

Its snapshot is in `snapshot_format.py`. Only the machine changes a state, in its group's thread.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from lithify.metastore.key_histories import KeyHistories
from lithify.metastore.revisions import RevisionColumns
from lithify.raft.live_indexes import LiveIndexes

__all__ = ["ChangesByKey", "MetastoreState", "StoredLease"]

ChangesByKey = dict[bytes, tuple[int, int, bytes] | None]
"""What a revision changes: lease, bytes and digest of the value of a key; None is a deletion."""


@dataclass(slots=True)
class StoredLease:
    """A lease and the keys that end with it."""

    ttl_ms: int
    generation: int = 1
    keys: set[bytes] = field(default_factory=set)


@dataclass(slots=True)
class MetastoreState:
    """See the module. A node reads `revision`, `time`, `floor` and `leases`."""

    keys: KeyHistories = field(default_factory=KeyHistories)
    revisions: RevisionColumns = field(default_factory=RevisionColumns)
    live: LiveIndexes = field(default_factory=LiveIndexes)
    leases: dict[int, StoredLease] = field(default_factory=dict)
    revision: int = 0
    """The newest one."""
    time: int = 0
    """Of the last command."""
    floor: int = 0
    purged: int = 0
    """The purge has examined the revisions up to this one; see `purge.py`."""
    purged_changes: int = 0
    """And this number of changes of the next one."""
    purged_floor: int = 0
    """The floor that the last complete purge had."""
    lease_of: dict[bytes, int] = field(default_factory=dict)
    """The keys that have a lease."""

    def commit(
        self, revision: int, entry_bytes: int, changes: ChangesByKey, *, otherwise: bool = False
    ) -> None:
        """Add a revision with these changes, of which there is at least one."""
        keys, columns, lease_of = self.keys, self.revisions, self.lease_of
        values = 0
        for key, change in changes.items():
            if lease_of:
                old = lease_of.pop(key, 0)
                if old:
                    self.leases[old].keys.discard(key)
            columns.keys.append(key)
            if change is None:
                keys.delete(key, revision)
                columns.has_value.append(0)
                continue
            lease = change[0]
            keys.put(key, revision, *change)
            columns.has_value.append(1)
            values += 1
            if lease:
                lease_of[key] = lease
                self.leases[lease].keys.add(key)
        columns.append(revision, self.time, entry_bytes, values, otherwise=otherwise)
        if values:
            self.live.add(revision)
        self.revision = revision

    def end_lease(self, lease: int, revision: int, entry_bytes: int) -> bool:
        """End a lease and delete its keys; did that make a revision?"""
        keys = sorted(self.leases[lease].keys)
        if keys:
            self.commit(revision, entry_bytes, dict.fromkeys(keys))
        del self.leases[lease]
        return bool(keys)

    def visible_values(self, row: int) -> dict[bytes, tuple[int, int, bytes]]:
        """The values of a revision that can be read: lease, bytes and digest, by key.

        The other ones are retained only because a purge has not reached them.
        """
        number = self.revisions.numbers[row]
        visible = {}
        for key, has_value in self.revisions.changes(row):
            found = self.keys.following(key, number) if has_value else None
            if found is None:
                continue
            kept, following = found
            if not following or following > self.floor + 1:
                visible[key] = kept.lease, kept.value_bytes, kept.digest
        return visible

    def drop_values(self, key: bytes, through: int) -> int:
        """Remove the revisions of a key up to one.

        Returns the number of examined revisions that have no values since.
        """
        emptied = 0
        columns = self.revisions
        for dropped in self.keys.drop_through(key, through):
            if dropped.is_tombstone:
                continue
            row = columns.row(dropped.revision)
            columns.values[row] -= 1
            if not columns.values[row]:
                self.live.remove(columns.places[row])
                emptied += dropped.revision <= self.purged
        return emptied

    def raise_floor(self, revision: int) -> None:
        """Raise the floor."""
        self.floor = revision
        # Deletions that were just above the floor are to be examined again.
        self.purged_changes = 0

    def end_purge(self) -> None:
        """Nothing is left to examine below the floor."""
        self.purged, self.purged_changes, self.purged_floor = self.floor, 0, self.floor

    def set_leases(self, leases: dict[int, StoredLease]) -> None:
        """Take loaded leases, and find their keys."""
        self.leases = leases
        self.lease_of = self.keys.leases()
        for key, lease in self.lease_of.items():
            leases[lease].keys.add(key)
