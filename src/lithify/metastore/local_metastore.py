"""The metastore on a node of the cluster: a `Metastore` over the node's member of its group.

    metastore = LocalMetastore(raft_node, clock)
    outcome = await metastore.transact(...)

Commands go to the leader, wherever it is. Local reads and watches are answered from the state that
this member has applied.

A watch asks for the changes above the last revision that it has yielded, again and again. Applied
commands only wake it. So it misses and repeats nothing, whatever happens in between: a restart of a
leader, a snapshot that this member installs, a slow reader.

The time of the store advances with commands, to the clock of the leader. `wait_safe_time` waits for
commands of others until the clock of this node has reached the time, then proposes one itself, and
repeats that after `TIME_AGAIN_S`.

One event loop, that of the Raft node.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from lithify.hybrid_time import milliseconds
from lithify.metastore import format as commands
from lithify.metastore import reply_format as replies
from lithify.metastore.errors import MetastoreUnavailable
from lithify.metastore.machine import MetastoreMachine
from lithify.metastore.requests import MetastoreRequests
from lithify.raft.errors import GroupAbsent

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from lithify.clock import Clock
    from lithify.metastore.metastore import Revision
    from lithify.metastore.state import MetastoreState
    from lithify.raft.group.group import Group
    from lithify.raft.node.node import RaftNode

__all__ = ["GROUP", "LocalMetastore"]

GROUP = "metastore"
TIME_AGAIN_S = 0.05
"""Between two commands that advance the time."""


class LocalMetastore(MetastoreRequests):
    """See the module."""

    def __init__(self, node: RaftNode, clock: Clock) -> None:
        """The machine of the group `GROUP` of the node is a `MetastoreMachine`."""
        super().__init__(_NodeAccess(node))
        self._node = node
        self._clock = clock
        self._waiting: set[asyncio.Future[None]] = set()
        node.listeners.on_applied(self._applied)

    @property
    def state(self) -> MetastoreState:
        """What this member has applied; raises `GroupAbsent` before the node is a member."""
        state: MetastoreState = self.group.state
        return state

    @property
    def leading_term(self) -> int:
        """The term in which this node leads the metastore; 0 if it does not lead."""
        return self.group.leading_term

    def propose_all(self, proposed: Sequence[bytes]) -> None:
        """On the leader: propose commands, and do not wait for their outcome."""
        for command in proposed:
            self.group.propose(command, _ignored)
        if proposed:
            self._node.mark(self.group)

    @property
    def group(self) -> Group[Any]:
        """The member of the group on this node."""
        group = self._node.groups.get(GROUP)
        if group is None:
            raise GroupAbsent(GROUP, self._node.identity.node)
        return group

    async def watch(
        self, start: bytes, end: bytes, *, after: int
    ) -> AsyncGenerator[Revision, None]:
        """The revisions above `after` that change the range. Close the generator to end it."""
        while True:
            query = replies.encode_changes(start, end, after)
            page = replies.parse_changes(await self._read(query, after, local=True))
            for revision in page.revisions:
                yield revision
            # A member that has just started may be behind the revision that was asked for.
            after = max(after, page.through)
            while self.state.revision <= after:
                await self._next_applied()

    async def wait_safe_time(self, time: int) -> None:
        """Return when no later revision can have a timestamp at or below this one, here."""
        while self.state.time < time:
            ahead_s = (milliseconds(time) + 1 - self._clock.now_ms()) / 1000
            if ahead_s > 0:
                await self._next_applied(ahead_s)
                continue
            await self._propose(commands.encode_time())
            if self.state.time < time:
                await self._next_applied(TIME_AGAIN_S)

    async def wait_present(self) -> None:
        """Return when this node is a member of the group."""
        while GROUP not in self._node.groups:
            await self._next_applied(TIME_AGAIN_S)

    async def wait_committed(self) -> None:
        """Return when everything that this member knows to be committed is applied here."""
        while self.group.applied_index < self.group.status().commit:
            await self._next_applied(TIME_AGAIN_S)

    def purge(self, changes_max: int) -> bool:
        """Remove some of what no read above the floor can see; returns whether that was all.

        Does not change the answer of any query. In the group's thread, a few milliseconds.
        """
        return _MACHINE.purge(self.state, changes_max).finished

    async def _next_applied(self, timeout_s: float | None = None) -> None:
        """Return when the group has applied something here, or after a time."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.add(future)
        try:
            await asyncio.wait((future,), timeout=timeout_s)
        finally:
            self._waiting.discard(future)

    def _applied(self, group: str) -> None:
        if group == GROUP:
            waiting, self._waiting = self._waiting, set()
            for future in waiting:
                if not future.done():
                    future.set_result(None)


_MACHINE = MetastoreMachine()


def _ignored(_: object) -> None:
    """The outcome of a command that is proposed again if it was lost."""


class _NodeAccess:
    """A `MetastoreAccess` over the node."""

    def __init__(self, node: RaftNode) -> None:
        self._node = node

    async def propose(self, command: bytes) -> bytes:
        return (await self._node.propose(GROUP, command)).reply

    async def read(self, query: bytes, *, local: bool) -> bytes:
        try:
            return (await self._node.read(GROUP, query, local=local)).reply
        except GroupAbsent as error:
            raise MetastoreUnavailable(str(error)) from error
