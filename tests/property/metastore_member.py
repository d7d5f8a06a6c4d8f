"""The metastore of a simulated member: its requests, its watcher, its lease, and its machine.

The code is that of a node (`LocalMetastore`, `MetastoreMaintenance`, `HeldLease`); the world
carries its requests. Everything asynchronous runs in one event loop without timers, which the world
turns.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from lithify.metastore import query_format as replies
from lithify.metastore.command_format import CommandKind
from lithify.metastore.errors import LeaseNotFound, MetastoreUnavailable, RevisionCompacted
from lithify.metastore.held_lease import HeldLease
from lithify.metastore.local_metastore import GROUP, LocalMetastore
from lithify.metastore.machine import MetastoreMachine
from lithify.metastore.maintenance import MetastoreMaintenance
from lithify.raft.commands import CommandResult
from lithify.raft.core import Dropped
from lithify.raft.net.client_operations import MayHaveHappened, NoAnswer
from lithify.raft.node.group_listeners import GroupListeners

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from lithify.live_set import LiveSet
    from lithify.metastore.state import MetastoreState
    from lithify.raft.commands import Done, Result
    from lithify.raft.group.group import Group
    from lithify.raft.machine import CommandBatch, Effect
    from tests.property.metastore_cluster import MetastoreWorld
    from tests.property.raft_member import Member

LEASE_COMMANDS = (CommandKind.GRANT, CommandKind.KEEP)


class ToldMachine(MetastoreMachine):
    """Tells the world what is applied and answered, once for each command."""

    def __init__(self, world: MetastoreWorld) -> None:
        super().__init__()
        self.world = world

    def apply_many(
        self, batch: CommandBatch, start: int, state: MetastoreState
    ) -> tuple[MetastoreState, list[bytes], Sequence[Effect]]:
        state, found, effects = super().apply_many(batch, start, state)
        for place, reply in enumerate(found, start):
            command = batch.commands[place]
            self.world.applied_one(batch.index + place, batch.term, command, reply)
        return state, found, effects

    def live_indexes(self, state: MetastoreState) -> LiveSet:
        """The same on every member that has a state at this index."""
        live = super().live_indexes(state)
        columns, visible = state.revisions, state.visible_values
        assert set(live) == {columns.places[row] for row in range(len(columns)) if visible(row)}
        return live


class Identity:
    def __init__(self, node: str) -> None:
        self.node = node


class SimulatedNode:
    """What `LocalMetastore` uses of a `RaftNode`."""

    def __init__(self, world: MetastoreWorld, member: Member) -> None:
        self.world = world
        self.member = member
        self.groups: dict[str, Group[Any]] = member.groups
        self.identity = Identity(member.name)
        self.listeners = GroupListeners(member.name, member.groups)

    def mark(self, _: Group[Any]) -> None:
        self.world.marked.add(self.member.name)

    async def propose(self, group: str, command: bytes) -> CommandResult:
        """The leader is asked, if it can be reached; its answer may get lost."""
        target = self.world.leader_seen_by(self.member)
        if target is None:
            raise NoAnswer("no leader")
        return await self.ask(target, partial(target.groups[group].propose, command))

    async def read(self, group: str, query: bytes, *, local: bool = False) -> CommandResult:
        own = self.groups[group]
        return await self.ask(self.member, partial(own.query_local if local else own.read, query))

    async def ask(self, target: Member, begin: Callable[[Done], object]) -> CommandResult:
        future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        waiting = self.world.in_flight.setdefault(target.name, set())
        waiting.add(future)

        def done(result: Result) -> None:
            if not future.done():
                future.set_result(result)

        begin(done)
        self.world.marked.add(target.name)
        try:
            result = await future
        finally:
            waiting.discard(future)
        if isinstance(result, CommandResult):
            return result
        if isinstance(result, Dropped):
            raise NoAnswer(str(result)) from result
        raise MayHaveHappened(str(result)) from result


class Life:
    """A member from a start to its end."""

    def __init__(self, world: MetastoreWorld, member: Member, after: int) -> None:
        self.world = world
        self.member = member
        self.node = SimulatedNode(world, member)
        self.metastore = LocalMetastore(self.node, world.clock)  # type: ignore[arg-type]
        self.maintenance = MetastoreMaintenance(self.metastore, world.clock)
        self.held = HeldLease(self.metastore, world.clock, world.ttl_ms)
        self.tasks: set[asyncio.Task[None]] = set()
        self.seen = after
        """The last revision that its watcher has got."""
        self.gate: asyncio.Event | None = None
        """What the watcher waits for, if it is slow now."""
        self.do(self.watch())

    def do(self, work: Coroutine[Any, Any, None]) -> None:
        self.tasks.add(self.world.loop.create_task(work))

    def end(self) -> None:
        for task in self.tasks:
            task.cancel()

    def work(self) -> None:
        self.node.listeners.worked(self.member.groups[GROUP])

    async def watch(self) -> None:
        while True:
            try:
                async with aclosing(self.metastore.watch(b"", b"", after=self.seen)) as revisions:
                    async for each in revisions:
                        self.world.check_seen(self, each)
                        self.seen = each.revision
                        if self.gate is not None:
                            await self.gate.wait()
            except RevisionCompacted as error:
                self.world.check_ended(self, error.floor)
                self.seen = error.floor
            except MetastoreUnavailable:
                # Its read was dropped, or it is damaged; a node would ask again.
                await asyncio.sleep(0)

    async def use_lease(self) -> None:
        """Get, keep or release a lease."""
        rng, held = self.world.random, self.held
        with suppress(MayHaveHappened, MetastoreUnavailable, LeaseNotFound):
            if not held.id:
                await held.acquire()
            elif rng.random() < 0.8:
                await held.keep()
            elif rng.random() < 0.5:
                await held.release()
            else:
                await self.world.put_with_lease(self)


def lease_told(command: bytes, reply: bytes) -> int:
    """The lease that a command has granted or kept; 0 if it is no such command."""
    parsed = replies.parse_reply(reply)
    is_told = command[:1] in {bytes((kind,)) for kind in LEASE_COMMANDS}
    if not is_told or parsed.outcome is not replies.MetastoreOutcome.DONE:
        return 0
    return replies.parse_leases(parsed)[0].id
