"""Takes the steps of `rebalance.py` on the leader of a partition's group.

    if moves.steps(group, known, may_copy=True):
        await moves.step(partition, known, may_copy=True)      # one of them

Before a step the assignment is read again: a leader that is behind does nothing. Changes are
proposed to the member on this node only, so they have no effect if another node leads meanwhile.
What is refused for now, such as a learner that has not got the log yet, is tried again later.

One event loop, that of the Raft node.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from lithify.errors import LithifyError
from lithify.raft.core import ConfChange, Dropped, MemberChange, Op, QuorumAtRisk
from lithify.raft.net.client_operations import ClientOperation
from lithify.tables.assignments import group_name, parse_group
from lithify.tables.rebalance import MoveAction, MoveStep, finished, next_steps

if TYPE_CHECKING:
    from lithify.raft.commands import Result
    from lithify.raft.group.group import Group
    from lithify.raft.node.node import RaftNode
    from lithify.tables.assignments import Assigned, Assignments, Partition

__all__ = ["COPIES_AT_ONCE", "GroupMoves"]

COPIES_AT_ONCE = 4
"""Groups led by one node whose learners get the log at the same time."""
AGAIN_S = 0.1
"""Between two questions whether a learner has the log."""


class GroupMoves:
    """See the module."""

    def __init__(self, node: RaftNode, assignments: Assignments) -> None:
        self._node = node
        self._assignments = assignments
        self._own = node.identity.node

    def copies(self) -> int:
        """The groups led here with learners that can get the log."""
        connected = self._node.transport.connected
        return sum(
            parse_group(name) is not None
            and group.leading_term > 0
            and not group.config.learners.isdisjoint(connected)
            for name, group in self._node.groups.items()
        )

    def steps(self, group: Group[Any], known: Assigned, *, may_copy: bool) -> tuple[MoveStep, ...]:
        """What can be done for a group now; nothing if another node leads it."""
        if not group.leading_term:
            return ()
        assignment = known.assignment
        connected = (self._own, *self._node.transport.connected)
        found = next_steps(self._own, group.config, assignment.goal, connected)
        if found[:1] == (MoveStep(MoveAction.FINISH),):
            status = group.status()
            if not assignment.pending or status.config_index > status.commit:
                return ()
        return tuple(each for each in found if may_copy or each.action is not MoveAction.LEARN)

    async def step(self, partition: Partition, known: Assigned, *, may_copy: bool) -> None:
        """Take one step; raises the last error if all are refused."""
        if not await self._assignments.is_current(partition, known):
            # The watch delivers the present one.
            return
        group = self._node.groups.get(group_name(partition))
        refused: LithifyError | None = None
        for step in () if group is None else self.steps(group, known, may_copy=may_copy):
            assert group is not None
            try:
                await self._take(group, partition, known, step)
            except LithifyError as error:
                refused = error
            else:
                return
        if isinstance(refused, Dropped) and not isinstance(refused, QuorumAtRisk):
            # A learner gets the log, or a change is in progress.
            await asyncio.sleep(AGAIN_S)
        elif refused is not None:
            raise refused

    async def _take(
        self, group: Group[Any], partition: Partition, known: Assigned, step: MoveStep
    ) -> None:
        name, requests = group_name(partition), self._node.requests
        if step.action is MoveAction.FINISH:
            new = finished(known.assignment)
            await self._assignments.replace(partition, known, new)
        elif step.action is MoveAction.TRANSFER:
            await requests.administer(name, ClientOperation.TRANSFER, {"to": step.nodes[0]})
        elif step.action is MoveAction.LEARN:
            # The node is contacted first (`raft/node/member_changes.py`).
            change = {"change": f"{Op.LEARNER}{step.nodes[0]}", "book": {}}
            await requests.administer(name, ClientOperation.CHANGE, change)
        else:
            op = Op.VOTER if step.action is MoveAction.PROMOTE else Op.REMOVE
            changes = tuple(MemberChange(op, node) for node in step.nodes)
            await self._propose(group, ConfChange(changes))

    async def _propose(self, group: Group[Any], change: ConfChange) -> None:
        future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()

        def done(result: Result) -> None:
            if not future.done():
                future.set_result(result)

        group.propose_change(change, done)
        self._node.mark(group)
        result = await future
        if isinstance(result, LithifyError):
            raise result
