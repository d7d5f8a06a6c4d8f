"""The catalog's updates in the metastore, one for each version; keys and values in `format.py`.

**Append**: one transaction that demands that the newest version is the one before, and puts the
updates and the new newest version. So each version is written once, by one writer. If the outcome
is unknown, the updates at those versions are read: their tags are compared with those sent. If the
versions are not there, the same transaction is sent again; that is safe, because only one of the
two can find the version before. What cannot be found out, because a snapshot has replaced the
updates, stays unknown.

**Replay**: `replay.py`. **Snapshot**: `snapshot_publication.py`.

**Watch**: every update above a revision, once, in order; and the version of each new snapshot.

The log knows nothing of what is in an update. One event loop.
"""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lithify.catalog.update_log.errors import AppendOutcomeUnknown
from lithify.catalog.update_log.format import (
    LOG_RANGE,
    SNAPSHOT_KEY,
    TAG_BYTES,
    VERSION_KEY,
    SnapshotPointer,
    encode_version,
    parse_update_key,
    parse_version,
    update_key,
)
from lithify.catalog.update_log.replay import (
    LoggedSnapshot,
    LoggedUpdate,
    LogHead,
    read_head,
    replay_from,
)
from lithify.catalog.update_log.snapshot_publication import SnapshotFold, SnapshotPublication
from lithify.errors import LithifyError
from lithify.metastore.transaction import Compare, Condition, Put, Transaction
from lithify.raft.errors import OutcomeUnknown
from lithify.raft.net.client_operations import MayHaveHappened

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterable, Sequence

    from lithify.metastore.metastore import KeyValue, Metastore

__all__ = ["AppendOutcome", "SnapshotMoved", "UpdateLog"]

TRIES_MAX = 8


@dataclass(frozen=True, slots=True)
class AppendOutcome:
    """The outcome of an append."""

    won: bool
    """False: another writer has appended that version; nothing of this append is in the log."""
    timestamp: int = 0
    """Of the updates, if it won."""


@dataclass(frozen=True, slots=True)
class SnapshotMoved:
    """A snapshot was published: updates up to this version are no longer needed."""

    version: int


class UpdateLog:
    """See the module. `draw_tag` returns random bytes of a given number."""

    def __init__(self, metastore: Metastore, draw_tag: Callable[[int], bytes]) -> None:
        self._metastore = metastore
        self._draw_tag = draw_tag

    async def append(self, version: int, payloads: Sequence[bytes]) -> AppendOutcome:
        """Append updates as this version and the following ones: all of them, or none."""
        tag = self._draw_tag(TAG_BYTES)
        values = [tag + payload for payload in payloads]
        transaction = _append(version, values)
        unknown: LithifyError | None = None
        for _ in range(TRIES_MAX):
            try:
                outcome = await self._metastore.transact(transaction)
            except (MayHaveHappened, OutcomeUnknown) as error:
                unknown = error
            except LithifyError as error:
                if unknown is None:
                    raise
                # This try did nothing, but the one before may have.
                raise AppendOutcomeUnknown(version) from error
            else:
                if outcome.succeeded:
                    return AppendOutcome(won=True, timestamp=outcome.timestamp)
                if unknown is None:
                    return AppendOutcome(won=False)
            found = await self._find_outcome(version, values)
            if found is not None:
                return found
        raise AppendOutcomeUnknown(version) from unknown

    async def _find_outcome(self, version: int, values: list[bytes]) -> AppendOutcome | None:
        """Who has written these versions; None if they are not written."""
        last = version + len(values) - 1
        try:
            newest = await self._metastore.get(VERSION_KEY)
            newest_version = parse_version(newest.value) if newest else 0
            if newest_version < version:
                return None
            if newest_version < last:
                return AppendOutcome(won=False)  # all would be there
            row = await self._metastore.get(update_key(last))
        except LithifyError as error:
            raise AppendOutcomeUnknown(version) from error
        if row is None:
            raise AppendOutcomeUnknown(version)  # a snapshot has replaced the update
        return _compare(row, values[-1])

    async def head(self) -> LogHead:
        """The newest version and the snapshot; linearizable."""
        return await read_head(self._metastore)

    def replay(
        self, head: LogHead, after: int = 0
    ) -> AsyncGenerator[LoggedSnapshot | LoggedUpdate, None]:
        """What follows version `after` up to the newest version of the head, in order.

        That is a snapshot if there is one above `after`, then updates. A snapshot may follow
        updates, if it was published meanwhile. `UpdateMissing` names a version that is not there.
        """
        return replay_from(self._metastore, head, after, head.newest)

    async def watch(self, after: int) -> AsyncGenerator[LoggedUpdate | SnapshotMoved, None]:
        """The updates and snapshots of the revisions above this one; raises `RevisionCompacted`."""
        async with aclosing(self._metastore.watch(*LOG_RANGE, after=after)) as revisions:
            async for revision in revisions:
                for change in revision.changes:  # in the order of keys, so of versions
                    version = parse_update_key(change.key)
                    if change.value is None:
                        continue
                    if version is not None:
                        payload = change.value[TAG_BYTES:]
                        yield LoggedUpdate(version, revision.timestamp, payload)
                    elif change.key == SNAPSHOT_KEY:
                        yield SnapshotMoved(SnapshotPointer.parse(change.value).version)

    async def save_snapshot(
        self,
        version: int,
        chunks: Iterable[bytes],
        fold: SnapshotFold,
        demands: tuple[Compare, ...] = (),
    ) -> bool:
        """Replace the updates up to a version by a snapshot; False if there is one as new.

        `fold` makes the snapshot from a replay, to compare it with `chunks`. It is published only
        if the demands hold at that moment.
        """
        return await SnapshotPublication(self._metastore, version, fold, demands).publish(chunks)


def _append(version: int, values: Sequence[bytes]) -> Transaction:
    before = (
        Compare(VERSION_KEY, Condition.VALUE, value=encode_version(version - 1))
        if version > 1
        else Compare(VERSION_KEY, Condition.ABSENT)
    )
    puts = [Put(update_key(version + place), value) for place, value in enumerate(values)]
    newest = Put(VERSION_KEY, encode_version(version + len(values) - 1))
    return Transaction((before,), (*puts, newest))


def _compare(row: KeyValue, value: bytes) -> AppendOutcome:
    return (
        AppendOutcome(won=True, timestamp=row.timestamp)
        if row.value == value
        else AppendOutcome(won=False)
    )
