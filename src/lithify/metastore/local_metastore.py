"""The metastore on a node of the cluster: a `Metastore` over the node's member of its group.

    metastore = LocalMetastore(raft_node, clock)
    outcome = await metastore.transact(...)

Commands go to the leader, wherever it is. Local reads and watches are answered from the state that
this member has applied. Without a member here they raise `MetastoreUnavailable`; so does a watch
whose node leaves the group or stops.

A watch asks for the changes above the last revision that it has yielded, again and again. Applied
commands only wake it, and it does not ask if they changed a few keys outside of its range. So it
misses and repeats nothing, whatever happens in between: a restart of a leader, a snapshot that this
member installs, a slow reader.

The time of the store advances with commands. `wait_safe_time` sends one if there are no others: to
the leader, whose clock decides, when this node's clock has reached the time, and again after
`TIME_AGAIN_S`. All that wait share one command.

Reads in progress are tracked by revision: nothing that they need is removed before they end. A read
at a lower revision that begins when the floor has risen is refused at once. `pins` are the claims
of readers that read one revision by several requests; on the leader they keep the floor below.

One event loop, that of the Raft node.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from lithify.compaction.planning.horizon import Holds
from lithify.errors import InvalidInput
from lithify.hybrid_time import milliseconds
from lithify.metastore import command_format as commands
from lithify.metastore import query_format as replies
from lithify.metastore.errors import MetastoreUnavailable
from lithify.metastore.purge import Purged, purge_state
from lithify.metastore.queries import has_no_news
from lithify.metastore.requests import MetastoreRequests
from lithify.metastore.transaction import check_key
from lithify.raft.errors import GroupAbsent
from lithify.raft.net.client_operations import MayHaveHappened

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from lithify.clock import Clock
    from lithify.metastore.metastore import KeyValue, Revision, Rows
    from lithify.metastore.query_format import MetastoreReply
    from lithify.metastore.state import MetastoreState
    from lithify.raft.group.group import Group
    from lithify.raft.node.node import RaftNode

__all__ = ["GROUP", "LocalMetastore", "OwnMetastore"]

GROUP = "metastore"
TIME_AGAIN_S = 0.05
"""Between two commands that advance the time, and between two looks for the group."""


class LocalMetastore(MetastoreRequests):
    """See the module."""

    def __init__(self, node: RaftNode, clock: Clock, group: str = GROUP) -> None:
        """The machine of the group of the node is a `MetastoreMachine`."""
        super().__init__(_NodeAccess(node, group))
        self.node = node
        self.name = group
        self.pins = Holds(clock)
        """Each at the last revision that its reader does not need: one below what it reads."""
        self._clock = clock
        self._reading: Counter[int] = Counter()
        """Reads in progress, by revision; 0 is the newest."""
        self._advancing = False
        """Was a command sent, and not answered, that advances the time?"""

    @property
    def group(self) -> Group[Any]:
        """The member of the group on this node; `MetastoreUnavailable` if there is none."""
        group = self.node.groups.get(self.name)
        if group is None:
            raise MetastoreUnavailable(str(GroupAbsent(self.name, self.node.identity.node)))
        return group

    @property
    def state(self) -> MetastoreState:
        """What this member has applied."""
        state: MetastoreState = self.group.state
        return state

    @property
    def ahead_ms(self) -> int:
        """How far the time of the store is ahead of the clock of this node."""
        return milliseconds(self.state.time) - self._clock.now_ms()

    @property
    def leading_term(self) -> int:
        """The term in which this node leads the metastore; 0 if it does not lead."""
        return self.group.leading_term

    @property
    def snapshot_index(self) -> int:
        """The index of the newest durable snapshot here: a restart replays what is above it."""
        return self.node.storage.groups[self.group.name].log.snapshot_index

    def propose_all(self, proposed: Sequence[bytes]) -> None:
        """On the leader: propose commands, and do not wait for their outcome."""
        for command in proposed:
            self.group.propose(command, _ignored)
        if proposed:
            self.node.mark(self.group)

    async def watch(
        self, start: bytes, end: bytes, *, after: int
    ) -> AsyncGenerator[Revision, None]:
        """The revisions above `after` that change the range. Close the generator to end it."""
        check_key(start)
        check_key(end)
        if not 0 <= after < 2**63:
            raise InvalidInput(f"a watch after {after} must be after 0 to 2**63 - 1")
        while True:
            query = replies.encode_changes(start, end, after)
            page = replies.parse_changes(await self._read(query, after + 1, local=True))
            for revision in page.revisions:
                yield revision
            # A member that has just started may be behind the revision that was asked for.
            after = max(after, page.through)
            while (state := self.state).revision <= after or has_no_news(state, start, end, after):
                after = max(after, state.revision)
                await self._applied_more()

    async def wait_safe_time(self, time: int) -> None:
        """Return when no later revision can have a timestamp at or below this one, here."""
        while self.state.time < time:
            ahead_s = (milliseconds(time) + 1 - self._clock.now_ms()) / 1000
            if ahead_s > 0:
                await self._applied_more(ahead_s)
                continue
            if not self._advancing:
                await self._advance_time()
            if self.state.time < time:
                await self._applied_more(TIME_AGAIN_S)

    async def _advance_time(self) -> None:
        self._advancing = True
        try:
            # If the outcome is unknown, another command follows.
            with suppress(MayHaveHappened):
                await self._propose(commands.encode_time())
        finally:
            self._advancing = False

    async def wait_present(self) -> None:
        """Return when this node is a member of the group."""
        while self.name not in self.node.groups:
            await asyncio.sleep(TIME_AGAIN_S)

    async def wait_committed(self) -> None:
        """Return when everything that this member knows to be committed is applied here."""
        while self.group.applied_index < self.group.status().commit:
            await self._applied_more(TIME_AGAIN_S)

    def purge(self, changes_max: int) -> Purged:
        """Remove some of what no read above the floor can see, unless a read needs it.

        Does not change the answer of any query. In the group's thread, a few milliseconds.
        """
        state = self.state
        if any(revision and revision <= state.floor for revision in self._reading):
            return Purged(0, 0, finished=False)
        return purge_state(state, changes_max)

    async def _read(
        self, query: bytes, revision: int = 0, *, local: bool = False
    ) -> MetastoreReply:
        reading = self._reading
        reading[revision] += 1
        try:
            return await super()._read(query, revision, local=local)
        finally:
            reading[revision] -= 1
            if not reading[revision]:
                del reading[revision]

    async def _applied_more(self, timeout_s: float | None = None) -> None:
        """Return when this member has applied something more, or after a time."""
        waiting = self.node.listeners.wait_applied(self.name, self.group.applied_index + 1)
        try:
            if timeout_s is None:
                await waiting
            else:
                async with asyncio.timeout(timeout_s):
                    await waiting
        except TimeoutError:
            return
        except GroupAbsent as error:
            raise MetastoreUnavailable(str(error)) from error


class OwnMetastore(LocalMetastore):
    """The metastore as this node knows it: nothing else changes it."""

    async def get(self, key: bytes, *, revision: int = 0, **_: bool) -> KeyValue | None:
        """See `Metastore`."""
        return await super().get(key, revision=revision, local=True)

    async def range(
        self, start: bytes, end: bytes, *, revision: int = 0, limit: int = 0, **_: bool
    ) -> Rows:
        """See `Metastore`."""
        return await super().range(start, end, revision=revision, limit=limit, local=True)


def _ignored(_: object) -> None:
    """The outcome of a command that is proposed again if it was lost."""


class _NodeAccess:
    """A `MetastoreAccess` over the node."""

    def __init__(self, node: RaftNode, group: str) -> None:
        self._node = node
        self._group = group

    async def propose(self, command: bytes) -> bytes:
        return (await self._node.propose(self._group, command)).reply

    async def read(self, query: bytes, *, local: bool) -> bytes:
        return (await self._node.read(self._group, query, local=local)).reply
