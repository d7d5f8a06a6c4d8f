"""The metastore on a node and the one in memory tell the same story in the same words.

A story is a list of random requests that follows from a seed. Revisions and leases have other
numbers in each store, so an answer is written with their ordinals, and times in milliseconds of one
clock that both have.
"""

from __future__ import annotations

from contextlib import aclosing
from functools import partial
from random import Random
from typing import TYPE_CHECKING

from lithify.clock import ManualClock
from lithify.errors import LithifyError
from lithify.hybrid_time import milliseconds
from lithify.metastore.errors import LeaseNotFound, RevisionCompacted, RevisionNotReached
from lithify.metastore.local_metastore import LocalMetastore
from lithify.metastore.transaction import (
    Compare,
    Condition,
    Delete,
    DeleteRange,
    Operation,
    Put,
    Transaction,
)
from lithify.testing.memory_metastore import MemoryMetastoreCluster
from tests.unit.metastore.nodes import alone, told

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from lithify.metastore.metastore import KeyValue, Lease, Outcome
    from lithify.testing.memory_metastore import MemoryMetastore

KEYS = (b"", b"a", b"aa", b"b", b"c", b"\xff")
ENDS = (b"", b"a", b"b", b"bb", b"\xff\xff")
STEPS = 400


class Teller:
    """Tells one story to a store, and writes its answers down."""

    def __init__(self, seed: int, store: LocalMetastore | MemoryMetastore, clock: ManualClock):
        self.random = Random(seed)
        self.store = store
        self.clock = clock
        self.revisions = [0]
        """By ordinal."""
        self.floor = 0
        """The ordinal."""
        self.leases: list[Lease] = []
        self.answers: list[tuple[str, object]] = []
        self.values = 0

    async def tell(self) -> list[tuple[str, object]]:
        steps: list[Callable[[], Awaitable[object]]] = [
            *[self.transact] * 8,
            *[self.get] * 4,
            *[self.range] * 4,
            self.compact,
            self.grant,
            self.keep,
            self.revoke,
            self.list_leases,
            self.watch,
            self.time,
        ]
        for _ in range(STEPS):
            step = self.random.choice(steps)
            answer: object
            try:
                answer = await step()
            except (RevisionCompacted, RevisionNotReached) as error:
                bound = error.floor if isinstance(error, RevisionCompacted) else error.newest
                answer = type(error), self.ordinal(bound)
            except LeaseNotFound as error:
                answer = type(error), self.lease_ordinal(error.lease)
            except LithifyError as error:
                answer = type(error)
            self.answers.append((step.__name__, answer))
        return self.answers

    # What is asked.

    def a_revision(self) -> int:
        """Mostly one that may be asked for; some are compacted, some are to come."""
        last = len(self.revisions) - 1
        if self.random.random() < 0.3:
            return 0
        ordinal = self.random.randint(max(1, min(self.floor - 2, last)), last + 1)
        return self.revisions[ordinal] if ordinal <= last else self.revisions[-1] + 1

    def a_lease(self) -> int:
        if not self.leases or self.random.random() < 0.1:
            return 999_999
        return self.random.choice(self.leases[-4:]).id

    async def transact(self) -> object:
        rng = self.random
        compares = tuple(self.compare() for _ in range(rng.choice((0, 0, 1, 2))))
        then = tuple(self.operation() for _ in range(rng.choice((1, 1, 3))))
        otherwise = tuple(self.operation() for _ in range(rng.choice((0, 1))))
        outcome = await self.store.transact(Transaction(compares, then, otherwise))
        return self.told_outcome(outcome)

    def compare(self) -> Compare:
        condition = self.random.choice(list(Condition))
        revision = self.random.choice(self.revisions[-5:])
        value = b"%d" % max(0, self.values - self.random.randrange(4))
        time = 0 if self.random.random() < 0.5 else 2**62
        key, end = self.random.choice(KEYS), self.random.choice(ENDS)
        return Compare(key, condition, revision, value, end, time)

    def operation(self) -> Operation:
        rng = self.random
        kind = rng.choice("pppdr")
        key = rng.choice(KEYS)
        if kind == "p":
            self.values += 1
            lease = self.a_lease() if rng.random() < 0.2 else 0
            return Put(key, b"%d" % self.values, lease)
        if kind == "d":
            return Delete(key)
        return DeleteRange(key, rng.choice(ENDS), rng.choice((1, 2, 1024)))

    async def get(self) -> object:
        key, revision = self.random.choice(KEYS), self.a_revision()
        local = self.random.random() < 0.5
        return self.told_row(await self.store.get(key, revision=revision, local=local))

    async def range(self) -> object:
        """All pages, continued after the last row of each."""
        rng = self.random
        start, end, revision = rng.choice(KEYS), rng.choice(ENDS), self.a_revision()
        limit, local = rng.choice((0, 1, 2, 5)), rng.random() < 0.5
        rows: list[object] = []
        while True:
            page = await self.store.range(start, end, revision=revision, limit=limit, local=local)
            assert not limit or len(page.rows) <= limit
            rows += map(self.told_row, page.rows)
            if not page.more:
                return self.ordinal(page.revision), rows
            # There may be more, or not, but a caller can always continue.
            start = page.rows[-1].key + b"\0"

    async def compact(self) -> object:
        last = len(self.revisions) - 1
        ordinal = self.random.randint(max(self.floor - 1, 0), min(self.floor + 6, last))
        await self.store.compact(self.revisions[ordinal])
        self.floor = max(self.floor, ordinal)
        purged = self.random.choice((0, 1, 3, 100))
        if isinstance(self.store, LocalMetastore):
            self.store.purge(purged)
        return None

    async def grant(self) -> object:
        self.leases.append(await self.store.grant_lease(self.random.choice((1000, 5000))))
        return self.told_lease(self.leases[-1])

    async def keep(self) -> object:
        if not self.leases:
            return None
        return self.told_lease(await self.store.keep_lease(self.random.choice(self.leases[-4:])))

    async def revoke(self) -> object:
        await self.store.revoke_lease(self.a_lease())
        # It may have made a revision that no caller knows.
        return await self.watch()

    async def list_leases(self) -> object:
        return [self.told_lease(each) for each in await self.store.leases()]

    async def watch(self) -> object:
        """From a revision up to one that is made for this."""
        after = self.revisions[self.random.randint(max(0, self.floor - 1), len(self.revisions) - 1)]
        self.values += 1
        mark = b"%d" % self.values
        outcome = await self.store.transact(Transaction(then=(Put(b"mark", mark),)))
        found = []
        async with aclosing(self.store.watch(b"", b"", after=after)) as revisions:
            async for each in revisions:
                if each.revision not in self.revisions:
                    self.revisions.append(each.revision)
                changes = sorted((change.key, change.value) for change in each.changes)
                found.append((self.ordinal(each.revision), changes))
                if each.revision == outcome.revision:
                    break
        return found

    async def time(self) -> object:
        self.clock.advance(self.random.choice((0.001, 1, 10)))
        before = await self.store.read_time()
        outcome = await self.store.transact(Transaction(then=(Put(b"t", b""),)))
        await self.store.wait_safe_time(outcome.timestamp)
        assert before < outcome.timestamp
        assert await self.store.revision_at(outcome.timestamp) == outcome.revision
        return self.told_outcome(outcome)

    # What is answered.

    def ordinal(self, revision: int) -> object:
        return self.revisions.index(revision) if revision in self.revisions else "another"

    def lease_ordinal(self, lease: int) -> object:
        known = [each.id for each in self.leases]
        return known.index(lease) if lease in known else "another"

    def told_outcome(self, outcome: Outcome) -> object:
        if outcome.changed:
            self.revisions.append(outcome.revision)
        ordinal, time_ms = self.ordinal(outcome.revision), milliseconds(outcome.timestamp)
        return outcome.succeeded, outcome.changed, ordinal, time_ms

    def told_row(self, row: KeyValue | None) -> object:
        if row is None:
            return None
        lease = self.lease_ordinal(row.lease) if row.lease else None
        revision, time_ms = self.ordinal(row.revision), milliseconds(row.timestamp)
        return row.key, row.value, revision, time_ms, lease

    def told_lease(self, lease: Lease) -> object:
        return self.lease_ordinal(lease.id), lease.ttl_ms, lease.generation


def test_both_stores_give_the_same_answers(tmp_path: Path) -> None:
    kinds: set[object] = set()

    async def story(seed: int) -> None:
        clock = ManualClock()
        found = await Teller(seed, MemoryMetastoreCluster(clock).node(), clock).tell()
        clock = ManualClock()
        async with alone(tmp_path / str(seed), clock) as metastore:
            same = await Teller(seed, metastore, clock).tell()
        for number, (one, other) in enumerate(zip(found, same, strict=True)):
            assert one == other, f"seed {seed}, answer {number}: in memory, then on a node"
        kinds.update(answer[0] for _, answer in found if isinstance(answer, tuple))

    for seed in range(6):
        told(partial(story, seed))
    assert {RevisionCompacted, RevisionNotReached, LeaseNotFound} <= kinds
