"""The Raft groups of partitions on a node: it creates them as the assignments say.

    store = await hosting.ready((zone_id, number))      # a `Metastore` of the partition's rows
    hosting.hosted()                                    # those with a member on this node

1. The first node of an assignment creates the group, with all nodes of the assignment as members.
   If some are not connected it begins with a majority. Then the assignment is `formed`, and the
   partition takes commands.
2. The leader of a group adds nodes of the assignment that are not members, when they are connected.
3. A group without an assignment is dropped by its leader: it was created for one that had gone.

Requests to a partition go to its group, on whatever node that is. Each node removes what no read
above the floor can see, as it does for the metastore (`metastore/maintenance.py`), in groups that
have applied something.

One event loop, that of the Raft node.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from lithify.errors import LithifyError
from lithify.logger import get_logger
from lithify.metastore.lease_expiry import CHECK_S
from lithify.metastore.local_metastore import LocalMetastore
from lithify.metastore.maintenance import MetastoreMaintenance
from lithify.raft.errors import GroupAbsent, MemberNotReached
from lithify.raft.net.client_operations import ClientOperation
from lithify.tables.assignments import Assignments, assignment_key, group_name, parse_group
from lithify.tables.errors import PartitionUnavailable

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from lithify.clock import Clock
    from lithify.raft.group.group import Group
    from lithify.raft.node.node import RaftNode
    from lithify.tables.assignments import Assigned, Partition

__all__ = ["PartitionHosting", "is_majority"]

READY_S = 20.0
"""How long a request waits for a partition that is being created."""
AGAIN_S = 0.2
"""Between two looks for work while there is some."""
LOOK_S = 5.0
"""Between two looks for work that nothing has announced."""
MAINTAIN_S = 1.0
AT_ONCE = 16
"""Groups that are created or changed at once."""

log = get_logger("lithify.tables")


class PartitionHosting:
    """See the module."""

    def __init__(self, node: RaftNode, metastore: LocalMetastore, clock: Clock) -> None:
        self.assignments = Assignments(metastore)
        self._node = node
        self._metastore = metastore
        self._clock = clock
        self._own = node.identity.node
        self._stores: dict[Partition, LocalMetastore] = {}
        self._loaded = False
        self._changed = asyncio.Event()
        """Replaced after each change of the assignments."""
        self._wake = asyncio.Event()
        self._busy: set[Partition] = set()
        self._at_once = asyncio.Semaphore(AT_ONCE)
        self._maintained: dict[Partition, MetastoreMaintenance] = {}
        self._applied: set[str] = set()
        """Groups that have applied something, or have more to be removed."""

    # --- partitions -------------------------------------------------------------------------

    def store(self, partition: Partition) -> LocalMetastore:
        """The rows of a partition, wherever its group is."""
        found = self._stores.get(partition)
        if found is None:
            found = LocalMetastore(self._node, self._clock, group_name(partition))
            self._stores[partition] = found
        return found

    def hosted(self) -> dict[Partition, LocalMetastore]:
        """The partitions with a member on this node."""
        found = (parse_group(name) for name in self._node.groups)
        return {each: self.store(each) for each in found if each is not None}

    def led(self) -> dict[Partition, LocalMetastore]:
        """The partitions whose leader is this node."""
        groups = self._node.groups.items()
        found = (parse_group(name) for name, group in groups if group.leading_term)
        return {each: self.store(each) for each in found if each is not None}

    async def ready(self, partition: Partition) -> LocalMetastore:
        """The rows of a partition that takes commands; `PartitionUnavailable` after a time."""
        if not self._takes_commands(partition):
            try:
                async with asyncio.timeout(READY_S):
                    while not self._takes_commands(partition):
                        await self._changed.wait()
            except TimeoutError:
                known = self.assignments.known.get(partition)
                why = "it has no nodes" if known is None else _state_of(known)
                zone, number = partition
                raise PartitionUnavailable(f"{number} of zone {zone}", why) from None
        return self.store(partition)

    def _takes_commands(self, partition: Partition) -> bool:
        known = self.assignments.known.get(partition)
        return known is not None and known.assignment.formed and not known.assignment.ending

    # --- following --------------------------------------------------------------------------

    async def follow(self) -> None:
        """Follow the assignments until cancelled."""
        while True:
            with suppress(LithifyError):
                await self.assignments.follow(self._take_change)
            await asyncio.sleep(AGAIN_S)

    def _take_change(self) -> None:
        self._loaded = True
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
        self._wake.set()

    async def run(self) -> None:
        """Create and change groups until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            while True:
                self._wake.clear()
                for partition, work in self._wanted().items():
                    self._busy.add(partition)
                    tasks.create_task(self._do(partition, work))
                with suppress(TimeoutError):
                    async with asyncio.timeout(AGAIN_S if self._busy else LOOK_S):
                        await self._wake.wait()

    def _wanted(self) -> dict[Partition, Coroutine[Any, Any, None]]:
        """The work that is to be done here, and is not being done."""
        if not self._loaded:
            return {}
        found: dict[Partition, Coroutine[Any, Any, None]] = {}
        for partition, known in self.assignments.known.items():
            assignment = known.assignment
            if partition in self._busy or assignment.ending:
                continue
            group = self._node.groups.get(group_name(partition))
            if not assignment.formed:
                if assignment.stable[0] == self._own:
                    found[partition] = self._form(partition, known)
            elif group is not None and self._missing(group, known):
                found[partition] = self._add(group, partition, known)
        for partition in self.led().keys() - self.assignments.known.keys() - self._busy:
            found[partition] = self._drop(partition)
        return found

    async def _do(self, partition: Partition, work: Coroutine[Any, Any, None]) -> None:
        try:
            async with self._at_once:
                await work
        except LithifyError as error:
            log.info("a partition waits", group=group_name(partition), reason=str(error))
            await asyncio.sleep(AGAIN_S)
        finally:
            self._busy.discard(partition)
            self._wake.set()

    # --- groups -----------------------------------------------------------------------------

    async def _form(self, partition: Partition, known: Assigned) -> None:
        name, stable = group_name(partition), known.assignment.stable
        if name not in self._node.groups:
            await self._create(name, stable)
        group = self._node.groups.get(name)
        if group is None:
            raise GroupAbsent(name, self._own)
        if not is_majority(group.config.voters, stable):
            # A stop in between: the group has only its first member.
            await self._add(group, partition, known)
        # A group of the same name that has ended elsewhere does not answer.
        await self.store(partition).read_time()
        if is_majority(group.config.voters, stable):
            formed = replace(known.assignment, formed=True)
            await self.assignments.replace(partition, known, formed)

    async def _create(self, name: str, stable: tuple[str, ...]) -> None:
        try:
            await self._node.requests.create_group(name, list(stable))
        except MemberNotReached:
            present = {self._own, *self._node.transport.connected}.intersection(stable)
            if not is_majority(present, stable):
                raise
            await self._node.requests.create_group(name, sorted(present))

    def _missing(self, group: Group[Any], known: Assigned) -> set[str]:
        """Nodes that this one can add to a group."""
        if not group.leading_term:
            return set()
        missing = set(known.assignment.stable) - group.config.members
        return missing.intersection(self._node.transport.connected)

    async def _add(self, group: Group[Any], partition: Partition, known: Assigned) -> None:
        for node in sorted(self._missing(group, known)):
            body = json.dumps({"change": f"+{node}", "book": {}}).encode()
            await self._node.requests.ask(group_name(partition), ClientOperation.CHANGE, body)

    async def _drop(self, partition: Partition) -> None:
        # The assignments that are known here may be behind.
        if await self._metastore.get(assignment_key(partition)) is None:
            await self._node.requests.ask(group_name(partition), ClientOperation.DROP, b"{}")

    # --- maintenance ------------------------------------------------------------------------

    async def maintain(self) -> None:
        """Remove what no read can see, until cancelled."""
        self._applied.update(self._node.groups)
        self._node.listeners.on_applied(self._applied.add)
        while True:
            applied = list(self._applied)
            self._applied.clear()
            for name in applied:
                partition, group = parse_group(name), self._node.groups.get(name)
                if partition is None:
                    continue
                if group is None:
                    self._maintained.pop(partition, None)
                elif group.state.purged_floor < group.state.floor:
                    await self._maintain(partition, self.store(partition))
                    # A reader may hold it back.
                    self._applied.add(name)
            await asyncio.sleep(MAINTAIN_S)

    async def _maintain(self, partition: Partition, store: LocalMetastore) -> None:
        work = self._maintained.get(partition)
        if work is None:
            work = self._maintained[partition] = MetastoreMaintenance(store, self._clock)
        while True:
            pause_s = CHECK_S
            with self._node.guarded():
                pause_s = work.step()
            if pause_s >= CHECK_S:
                return
            await asyncio.sleep(pause_s)


def is_majority(some: set[str] | frozenset[str], of: tuple[str, ...]) -> bool:
    """Are more than half of these nodes among some others?"""
    return 2 * len(some.intersection(of)) > len(of)


def _state_of(known: Assigned) -> str:
    if known.assignment.ending:
        return "it is being ended"
    return f"its group is being created on {', '.join(known.assignment.stable)}"
