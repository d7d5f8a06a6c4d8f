"""Publishing a snapshot of the catalog: many updates are replaced by the state after them.

1. Read the published snapshot. If it is as new, only step 7 is left.
2. Replay the log up to the version, make the snapshot from it, and compare it with the one given.
   If they differ, nothing is written: `SnapshotMismatch`.
3. Delete chunks of tries that were interrupted.
4. Write the chunks. A crash here leaves chunks that no pointer names; step 3 of the next try.
5. Read the chunks and compare them with the digest.
6. Switch: one transaction puts the pointer, if what the caller demands holds too. Otherwise the
   snapshot is refused: `SnapshotRefused`.
7. Delete the updates up to the version, then the chunks of older snapshots. A crash here leaves
   what is no longer read; step 7 of the next try, for whatever version, deletes it.

Two nodes may publish at once, the same version or different ones. Every transaction of steps 3 to 6
demands that the pointer is the one read in step 1, so nothing is written below a snapshot that was
published meanwhile. The switch also demands that each chunk is the one read in step 5, so chunks
that another node has written or deleted since are noticed. In both cases everything is repeated
from step 1; the pointer ascends only. Step 7 deletes only what the newest pointer has replaced.

All steps are in batches: small commands, and other tasks of the event loop have at least half of it
(`loop_share.py`).
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING, Protocol

from lithify.catalog.loop_share import LoopShare
from lithify.catalog.update_log.errors import (
    SnapshotContention,
    SnapshotMismatch,
    SnapshotRefused,
    SnapshotTooLarge,
)
from lithify.catalog.update_log.format import (
    SNAPSHOT_KEY,
    SnapshotPointer,
    chunk_key,
    chunks_of,
    update_key,
    updates_up_to,
)
from lithify.catalog.update_log.replay import (
    LONG_UPDATE_BYTES,
    LoggedSnapshot,
    LoggedUpdate,
    LogHead,
    digest_of,
    read_chunks,
    read_head,
    replay_from,
)
from lithify.errors import InvalidInput
from lithify.metastore.transaction import (
    OPERATIONS_MAX,
    Compare,
    Condition,
    DeleteRange,
    Put,
    Transaction,
)
from lithify.raft.errors import OutcomeUnknown
from lithify.raft.net.client_operations import MayHaveHappened

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lithify.metastore.metastore import Metastore

__all__ = ["SnapshotFold", "SnapshotPublication"]

TRIES_MAX = 8
DEMANDS_MAX = 2
CHUNKS_MAX = OPERATIONS_MAX - 2 - DEMANDS_MAX
"""The switch compares each of them, the pointer and the demands, and puts the pointer."""
DELETE_KEYS_MAX = 32
"""All members apply such a batch in less than 1 ms."""


class SnapshotFold(Protocol):
    """Makes a snapshot from a replay."""

    async def load(self, snapshot: LoggedSnapshot) -> None:
        """Start from a snapshot, instead of what was before."""

    def apply(self, update: LoggedUpdate) -> None:
        """Apply the next update; a long one in another thread, while the caller waits."""

    def chunks(self) -> Iterable[bytes]:
        """The snapshot of what was loaded and applied."""


class _Superseded(Exception):
    """The pointer or a chunk was changed by another node."""


class SnapshotPublication:
    """One call of `UpdateLog.save_snapshot`; see the module."""

    def __init__(
        self,
        metastore: Metastore,
        version: int,
        fold: SnapshotFold,
        demands: tuple[Compare, ...] = (),
    ) -> None:
        if len(demands) > DEMANDS_MAX:
            raise InvalidInput(f"{len(demands)} demands of a snapshot, at most {DEMANDS_MAX}")
        self._metastore = metastore
        self._version = version
        self._fold = fold
        self._demands = demands

    async def publish(self, made: Iterable[bytes]) -> bool:
        """Execute the steps; False if a snapshot as new is published."""
        chunks: list[bytes] = []
        share = LoopShare()
        for chunk in made:
            chunks.append(chunk)
            if len(chunks) > CHUNKS_MAX:
                raise SnapshotTooLarge(self._version, CHUNKS_MAX)
            await share.give()
        pointer = SnapshotPointer(self._version, len(chunks), await digest_of(chunks))
        replayed = False
        for _ in range(TRIES_MAX):
            head = await read_head(self._metastore)
            if not 1 <= self._version <= head.newest:
                limit = f"from 1 to {head.newest}"
                raise InvalidInput(f"snapshot of version {self._version}: it must be {limit}")
            if head.snapshot >= self._version:
                await self._delete_replaced(head.snapshot, head.snapshot)
                return False
            try:
                if not replayed:
                    await self._compare_with_replay(head, pointer)
                    replayed = True
                await self._delete_leftovers(head, pointer)
                await self._write(head, chunks)
                await self._switch(head, pointer)
            except _Superseded:
                continue
            except (MayHaveHappened, OutcomeUnknown):
                # The pointer tells whether the switch happened.
                if (await read_head(self._metastore)).pointer != pointer:
                    continue
            await self._delete_replaced(self._version, head.snapshot)
            return True
        raise SnapshotContention(self._version, TRIES_MAX)

    async def _compare_with_replay(self, head: LogHead, pointer: SnapshotPointer) -> None:
        share = LoopShare()
        async with aclosing(replay_from(self._metastore, head, 0, self._version)) as events:
            async for event in events:
                if isinstance(event, LoggedSnapshot):
                    if event.version > self._version:
                        raise _Superseded
                    await self._fold.load(event)
                elif len(event.payload) > LONG_UPDATE_BYTES:
                    await asyncio.to_thread(self._fold.apply, event)
                else:
                    self._fold.apply(event)
                await share.give()
        if await digest_of(self._fold.chunks()) != pointer.digest:
            raise SnapshotMismatch(self._version)

    async def _delete_leftovers(self, head: LogHead, pointer: SnapshotPointer) -> None:
        """Chunks of no published snapshot, but those that this try replaces."""
        kept = (
            chunks_of(head.snapshot) if head.pointer else None,
            (chunks_of(self._version)[0], chunk_key(self._version, pointer.chunks)),
        )
        start = chunks_of(0)[0]
        for stop, resume in (each for each in kept if each is not None):
            await self._delete(start, stop, _is_published(head))
            start = resume
        await self._delete(start, chunks_of(2**64 - 1)[1], _is_published(head))

    async def _write(self, head: LogHead, chunks: list[bytes]) -> None:
        # Another node may be writing the same snapshot: if each of the two replaced what the other
        # has written, neither would find its chunks unchanged at its switch.
        there = {row.key: row.value for row in await read_chunks(self._metastore, self._version)}
        for place, chunk in enumerate(chunks):
            if there.get(chunk_key(self._version, place)) == chunk:
                continue
            put = Put(chunk_key(self._version, place), chunk)
            outcome = await self._metastore.transact(Transaction((_is_published(head),), (put,)))
            if not outcome.succeeded:
                raise _Superseded

    async def _switch(self, head: LogHead, pointer: SnapshotPointer) -> None:
        """Read the chunks, compare them, and put the pointer if they are still the same."""
        rows = await read_chunks(self._metastore, self._version)
        if await digest_of(row.value for row in rows) != pointer.digest:
            raise _Superseded
        same = (Compare(row.key, Condition.REVISION, row.revision) for row in rows)
        put = Put(SNAPSHOT_KEY, pointer.encode())
        compares = (_is_published(head), *same, *self._demands)
        if (await self._metastore.transact(Transaction(compares, (put,)))).succeeded:
            return
        if not (await self._metastore.transact(Transaction(self._demands))).succeeded:
            raise SnapshotRefused(self._version)
        raise _Superseded

    async def _delete_replaced(self, snapshot: int, before: int) -> None:
        """The updates and the older chunks that a published snapshot has replaced.

        `before` is the snapshot before it, which has replaced the updates up to that version.
        """
        # Each batch has its own range. A search from the first update would pass all that were
        # deleted, as long as the metastore has their history: in every batch, on every node.
        share = LoopShare()
        for first in range(before + 1, snapshot + 1, DELETE_KEYS_MAX):
            end = min(first + DELETE_KEYS_MAX, snapshot + 1)
            batch = DeleteRange(update_key(first), update_key(end), DELETE_KEYS_MAX)
            with suppress(MayHaveHappened, OutcomeUnknown):
                await self._metastore.transact(Transaction(then=(batch,)))
            await share.give()
        # What is left: an earlier try was interrupted, or a batch was not done.
        await self._delete(*updates_up_to(snapshot))
        await self._delete(chunks_of(0)[0], chunks_of(snapshot)[0])

    async def _delete(self, start: bytes, end: bytes, *compares: Compare) -> None:
        """Delete a range in batches."""
        batch = DeleteRange(start, end, DELETE_KEYS_MAX)
        unknown, share = 0, LoopShare()
        while True:
            try:
                outcome = await self._metastore.transact(Transaction(compares, (batch,)))
            except (MayHaveHappened, OutcomeUnknown):
                unknown += 1
                if unknown == TRIES_MAX:
                    raise
                continue
            if not outcome.succeeded:
                raise _Superseded
            if not outcome.changed:
                return
            await share.give()


def _is_published(head: LogHead) -> Compare:
    """The pointer is that of the head."""
    if head.pointer is None:
        return Compare(SNAPSHOT_KEY, Condition.ABSENT)
    return Compare(SNAPSHOT_KEY, Condition.REVISION, head.pointer_revision)
