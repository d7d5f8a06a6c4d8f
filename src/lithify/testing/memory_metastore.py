"""A metastore in memory, for tests of what uses one.

    cluster = MemoryMetastoreCluster(ManualClock())
    one, two = cluster.node(), cluster.node()
    await one.transact(...)

All nodes of a `MemoryMetastoreCluster` share one sequence of commands. Each has a state of its own,
which has applied them all, unless the test holds it:

- `node.hold()`: local reads and watches of this node stay behind until `node.apply(commands)`, or
  `node.follow()` for good. `node.install()` applies all at once as a snapshot of the leader does:
  of what was compacted in between nothing is seen. Linearizable reads are those of the leader.
- `node.gate`: awaited before and after each request, and before a watch yields. So a test decides
  which of two racing nodes makes the next step. Without one, each request lets other tasks run.
- `node.lose_answers(...)`: the next transactions end with an unknown outcome. Each did not happen,
  did happen, or happens LATER, when the test calls `cluster.deliver()`.

Time is the time of the clock; `cluster.tick()` makes a command of it, and ends the leases that are
overdue.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from copy import deepcopy
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from lithify.errors import LithifyError
from lithify.metastore.errors import LeaseNotFound
from lithify.raft.net.client_operations import MayHaveHappened
from lithify.testing.memory_store import MemoryState

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from lithify.clock import Clock
    from lithify.metastore.metastore import KeyValue, Lease, Outcome, Revision, Rows
    from lithify.metastore.transaction import Transaction

__all__ = ["Happens", "MemoryMetastore", "MemoryMetastoreCluster", "Moment"]

WATCH_REVISIONS_MAX = 64
RANGE_ROWS_MAX = 1000
"""A larger answer has `more`."""

Result = TypeVar("Result")
Command = Callable[[MemoryState, int], object]


class Moment(Enum):
    """Where a request is when the gate is called."""

    BEFORE = "before"
    """It has not been executed."""
    AFTER = "after"
    """It has been executed, and is not answered."""


class Happens(Enum):
    """The fate of a transaction whose answer is lost."""

    NO = "no"
    YES = "yes"
    LATER = "later"


Gate = Callable[[str, Moment], Awaitable[None]]


class MemoryMetastoreCluster:
    """The commands and the state of the leader. One event loop."""

    def __init__(self, clock: Clock) -> None:
        self.state = MemoryState()
        self._clock = clock
        self._commands: list[tuple[int, Command]] = []
        self._nodes: list[MemoryMetastore] = []
        self._in_flight: list[Transaction] = []
        self._deadlines: dict[tuple[int, int], float] = {}

    def node(self) -> MemoryMetastore:
        """One more node; it has applied all commands."""
        node = MemoryMetastore(self, deepcopy(self.state), len(self._commands))
        self._nodes.append(node)
        return node

    def propose(self, command: Callable[[MemoryState, int], Result]) -> Result:
        """Execute a command, and have it applied by the nodes that are not held."""
        time_ms = self._clock.now_ms()
        self._commands.append((time_ms, command))
        self.state.advance(time_ms)
        try:
            return command(self.state, len(self._commands))
        finally:
            for lease in self.state.leases():
                started = self._clock.monotonic_s()
                self._deadlines.setdefault(
                    (lease.id, lease.generation), started + lease.ttl_ms / 1000
                )
            for node in self._nodes:
                if not node.held:
                    node.apply()

    def commands_above(self, applied: int) -> list[tuple[int, Command]]:
        """The commands that a node has not applied; for the nodes."""
        return self._commands[applied:]

    def send_later(self, transaction: Transaction) -> None:
        """Keep a transaction whose sender no longer waits; for the nodes."""
        self._in_flight.append(transaction)

    def deliver(self) -> None:
        """Execute the transactions that were to happen later."""
        waiting, self._in_flight = self._in_flight, []
        for transaction in waiting:
            self.propose(partial(_transact, transaction))

    def tick(self) -> None:
        """Make a command of the time, and end the leases that are overdue."""
        self.propose(lambda _state, _index: None)
        for lease in self.state.leases():
            if self._deadlines[lease.id, lease.generation] <= self._clock.monotonic_s():
                self.propose(partial(_expire, lease))


def _transact(transaction: Transaction, state: MemoryState, index: int) -> Outcome:
    return state.transact(index, transaction)


def _expire(lease: Lease, state: MemoryState, index: int) -> None:
    state.end_lease(index, lease.id, lease.generation)


class MemoryMetastore:
    """One node: a `Metastore`; see the module."""

    def __init__(self, cluster: MemoryMetastoreCluster, state: MemoryState, applied: int) -> None:
        self.gate: Gate | None = None
        self.held = False
        self._cluster = cluster
        self._state = state
        self._applied = applied
        self._lost: deque[Happens] = deque()
        self._waiting: list[asyncio.Future[None]] = []

    # -- for tests

    def hold(self) -> None:
        """Apply no command until the test says so."""
        self.held = True

    def follow(self) -> None:
        """Apply all commands, from here on at once."""
        self.held = False
        self.apply()

    def apply(self, commands: int | None = None) -> None:
        """Apply the next commands, or all."""
        for time_ms, command in self._cluster.commands_above(self._applied)[:commands]:
            self._applied += 1
            self._state.advance(time_ms)
            with suppress(LithifyError):  # the sender of the command has got it
                command(self._state, self._applied)
        self._wake()

    def install(self) -> None:
        """Replace the state by that of the leader, and stay held or not."""
        self._state = deepcopy(self._cluster.state)
        self._applied += len(self._cluster.commands_above(self._applied))
        self._wake()

    def lose_answers(self, *fates: Happens) -> None:
        """Lose the answers of the next transactions."""
        self._lost.extend(fates)

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            if not future.done():
                future.set_result(None)

    # -- the interface

    async def get(self, key: bytes, *, revision: int = 0, local: bool = False) -> KeyValue | None:
        """A key at a revision, or at the newest one."""
        await self._pass("get", Moment.BEFORE)
        found = self._read(local=local).get(key, revision)
        await self._pass("get", Moment.AFTER)
        return found

    async def range(
        self, start: bytes, end: bytes, *, revision: int = 0, limit: int = 0, local: bool = False
    ) -> Rows:
        """The keys of a range."""
        await self._pass("range", Moment.BEFORE)
        rows_max = min(limit or RANGE_ROWS_MAX, RANGE_ROWS_MAX)
        found = self._read(local=local).range(start, end, revision, rows_max)
        await self._pass("range", Moment.AFTER)
        return found

    async def transact(self, transaction: Transaction) -> Outcome:
        """Execute a transaction."""
        await self._pass("transact", Moment.BEFORE)
        fate = self._lost.popleft() if self._lost else None
        if fate is Happens.NO:
            raise MayHaveHappened("the answer was lost, and the transaction did not happen")
        if fate is Happens.LATER:
            self._cluster.send_later(transaction)
            raise MayHaveHappened("the answer was lost, and the transaction happens later")
        outcome = self._cluster.propose(partial(_transact, transaction))
        if fate is Happens.YES:
            raise MayHaveHappened("the answer was lost, and the transaction happened")
        await self._pass("transact", Moment.AFTER)
        return outcome

    async def watch(
        self, start: bytes, end: bytes, *, after: int
    ) -> AsyncGenerator[Revision, None]:
        """The revisions above `after` that change the range."""
        while True:
            # A later revision may come while one is yielded, so the end of the scan is read first.
            newest = self._state.revision
            found = self._state.changes(start, end, after, WATCH_REVISIONS_MAX)
            for revision in found:
                await self._pass("watch", Moment.BEFORE)
                yield revision
                after = revision.revision
            if not found:
                after = max(after, newest)
                await self._advanced()

    async def read_time(self) -> int:
        """The time of the store."""
        await self._pass("read_time", Moment.BEFORE)
        return self._cluster.state.time

    async def wait_safe_time(self, time: int) -> None:
        """Return when the state of this node has this time."""
        while self._state.time < time:
            await self._advanced()

    async def revision_at(self, time: int) -> int:
        """The revision that a reader at a timestamp reads."""
        await self._pass("revision_at", Moment.BEFORE)
        self._cluster.propose(lambda state, _index: state.reach(time))
        return self._cluster.state.revision_at(time)

    async def grant_lease(self, ttl_ms: int) -> Lease:
        """A new lease."""
        await self._pass("grant_lease", Moment.BEFORE)
        return self._cluster.propose(lambda state, index: state.grant(index, ttl_ms))

    async def keep_lease(self, lease: Lease) -> Lease:
        """Start the time to live of a lease again."""
        await self._pass("keep_lease", Moment.BEFORE)
        kept = self._cluster.propose(lambda state, _index: state.keep(lease.id))
        if kept is None:
            raise LeaseNotFound(lease.id)
        return kept

    async def revoke_lease(self, lease: int) -> None:
        """End a lease, and delete its keys."""
        await self._pass("revoke_lease", Moment.BEFORE)
        self._cluster.propose(lambda state, index: state.end_lease(index, lease))

    async def leases(self) -> list[Lease]:
        """All leases."""
        await self._pass("leases", Moment.BEFORE)
        return self._cluster.state.leases()

    async def compact(self, revision: int) -> None:
        """Raise the floor to a revision."""
        await self._pass("compact", Moment.BEFORE)
        self._cluster.propose(lambda state, _index: state.compact(revision))

    def _read(self, *, local: bool) -> MemoryState:
        return self._state if local else self._cluster.state

    async def _pass(self, request: str, moment: Moment) -> None:
        if self.gate is not None:
            await self.gate(request, moment)
        else:
            await asyncio.sleep(0)

    async def _advanced(self) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        await future
