"""Changes of members as a node performs them for its clients, from the checks to the answer.

    changes.begin(group, ConfChange.parse("+n4"), {"n4": "127.0.0.1:7004"}, done)
    changes.move(group, {"n2": "127.0.0.1:7009"}, done)

1. Only the leader changes members. Addresses may be given for nodes that are added. Only `move`
   changes the address of a member.
2. A node that is added is contacted first (`_check_node`): the node at its address must have its
   name and cluster, an identity that no group here contradicts, and no other group of the same name
   (`group_origin.py`). So a mistyped address, a node that does not run, another member and another
   cluster's node are refused before anything has changed. A member that is added again is contacted
   too: if its data directory was replaced it is refused, and must be removed first.
3. The node becomes a learner, with its identity in the entry. The leader stores the address when it
   has appended that entry, not before.
4. When the node answers and has the log it becomes a voter. A refusal of the consensus core that
   may pass is retried for some time.
5. A change ends within `CHANGE_S`. A learner that does not answer by then is removed again. One
   that is behind stays a learner, and the answer says so (`begun`): the command can be repeated.

Runs in the node's event loop. `Answering` calls.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from lithify.errors import InvalidInput, LithifyError
from lithify.logger import get_logger
from lithify.raft.commands import CommandResult
from lithify.raft.core import (
    ConfChange,
    Dropped,
    DropReason,
    MemberChange,
    NotCaughtUp,
    Op,
    ProposalDropped,
    QuorumAtRisk,
)
from lithify.raft.errors import (
    AddressesNotRecorded,
    GroupAbsent,
    LearnerSilent,
    LearnersNotPromoted,
    MemberAddressDiffers,
    MemberNotReached,
)
from lithify.raft.net.client_operations import ClientOperation
from lithify.raft.net.peer_recognition import IdentityRefused
from lithify.raft.node.group_origin import check_origin, origin
from lithify.raft.node.node_questions import ask_once
from lithify.raft.storage.file_names import group_of

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from lithify.raft.commands import Done, Result
    from lithify.raft.group.group import Group
    from lithify.raft.node.node import RaftNode

__all__ = ["AGAIN_S", "CHANGE_S", "LOOK_S", "ChangeInterrupted", "MemberChanges"]

CHANGE_S = 20.0
"""Below the time limit of clients, so that they get the answer."""
RISK_S = 2.0
"""Time to wait for a quorum to answer: a new leader has not heard all members."""
LOOK_S = 3.0
AGAIN_S = 0.02

log = get_logger("lithify.raft")


class ChangeInterrupted(ProposalDropped):
    """After the first step of a change, which stays, leadership was lost or the time was up."""

    def __init__(self, dropped: Dropped) -> None:
        super().__init__(dropped.reason, dropped.leader)


class MemberChanges:
    """See the module."""

    def __init__(self, node: RaftNode) -> None:
        self._node = node
        self._tasks: set[asyncio.Task[None]] = set()

    def close(self) -> None:
        """The node stops: cancel changes in progress."""
        for task in self._tasks:
            task.cancel()

    def begin(
        self, group: Group[Any], change: ConfChange, book: dict[str, str], done: Done
    ) -> None:
        """Change the members of a group; `book` has addresses of nodes that are added."""
        added = {item.node for item in change.changes if item.op is not Op.REMOVE}
        for name in book:
            if name not in added:
                raise InvalidInput(f"{change} does not add node {name}, whose address is given")
        _check_leads(group)
        self._start(self._change(group, change, book), done)

    def move(self, group: Group[Any], book: dict[str, str], done: Done) -> None:
        """Change the addresses of members, if the members are there."""
        _check_leads(group)
        members = group.status().config.members - {group.node}
        for name in book:
            if name not in members:
                raise InvalidInput(f"node {name} is not another member of the group")
        self._start(self._move(book), done)

    def _start(self, work: Coroutine[Any, Any, dict[str, Any]], done: Done) -> None:
        async def run() -> None:
            result: Result
            try:
                result = CommandResult(0, json.dumps(await work).encode())
            except LithifyError as error:
                result = error
            except OSError as error:
                result = AddressesNotRecorded(self._node.identity.node, error)
            done(result)

        task = asyncio.create_task(run())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _move(self, book: dict[str, str]) -> dict[str, Any]:
        for name, at in book.items():
            await self._check_node(name, at)
        self._node.transport.learn(book)
        return {"book": book}

    # --- changes ----------------------------------------------------------------------------

    async def _change(
        self, group: Group[Any], change: ConfChange, book: dict[str, str]
    ) -> dict[str, Any]:
        members = group.status().config.members
        known = self._node.transport.book
        wanted: list[MemberChange] = []
        for item in change.changes:
            if item.op is Op.REMOVE or item.node in members:
                at = book.get(item.node)
                if at is not None and at != known.get(item.node):
                    raise MemberAddressDiffers(item.node, known.get(item.node, "nowhere"), at)
                if item.op is not Op.REMOVE:
                    await self._check_member(item.node, known.get(item.node))
                wanted.append(item)
            else:
                at = book.get(item.node) or known.get(item.node)
                if at is None:
                    raise InvalidInput(f"the address of node {item.node} is not known here")
                identity = await self._check_node(item.node, at, group)
                wanted.append(replace(item, identity=identity))
        new = [item.node for item in wanted if item.op is Op.VOTER and item.node not in members]
        change = replace(change, changes=tuple(wanted))
        try:
            index = await self._propose_until(group, change, book)
        except NotCaughtUp as behind:
            silent = [name for name in new if behind.has.get(name, 0) is None]
            if silent and await self._remove(group, silent):
                raise LearnerSilent(silent, CHANGE_S) from behind
            raise LearnersNotPromoted(sorted(behind.has), behind.progress) from behind
        return {"index": index}

    async def _propose_until(
        self, group: Group[Any], change: ConfChange, book: dict[str, str]
    ) -> int:
        """Propose a change until it is committed; returns its index."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        joined = False
        while True:
            result = await self._proposed(group, change)
            if isinstance(result, CommandResult):
                self._node.transport.learn(book)
                return result.index
            if not isinstance(result, Dropped):
                raise result
            limit_s = RISK_S if isinstance(result, QuorumAtRisk) else CHANGE_S
            is_late = loop.time() - began > limit_s
            if result.reason is DropReason.LEARNER_FIRST:
                joined = True
                self._node.transport.learn(book)
            elif _is_judged(result):
                if is_late:
                    raise result
            elif not joined:
                # Nothing was done yet, so the client can retry.
                raise result
            elif is_late or result.reason in (DropReason.NOT_LEADER, DropReason.NO_LEADER):
                raise ChangeInterrupted(result)
            await asyncio.sleep(AGAIN_S)

    async def _remove(self, group: Group[Any], names: list[str]) -> bool:
        """Remove learners that do not answer; returns whether that is committed."""
        change = ConfChange(tuple(MemberChange(Op.REMOVE, name) for name in names))
        with suppress(TimeoutError):
            async with asyncio.timeout(RISK_S):
                while isinstance(result := await self._proposed(group, change), Dropped):
                    await asyncio.sleep(AGAIN_S)
                return isinstance(result, CommandResult)
        return False

    async def _proposed(self, group: Group[Any], change: ConfChange) -> Result:
        """The outcome of a proposal; a group that was dropped meanwhile would never answer."""
        name = group_of(group.name)
        if self._node.groups.get(name) is not group:
            raise GroupAbsent(name, self._node.identity.node)
        future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()

        def done(result: Result) -> None:
            if not future.done():
                future.set_result(result)

        group.propose_change(change, done)
        self._node.mark(group)
        return await future

    # --- checks -----------------------------------------------------------------------------

    async def _check_member(self, name: str, at: str | None) -> None:
        """Raise `IdentityRefused` if a member has another data directory; it may be down."""
        if at is not None and name != self._node.identity.node:
            with suppress(MemberNotReached):
                await self._check_node(name, at)

    async def _check_node(self, name: str, at: str, group: Group[Any] | None = None) -> str:
        """The identity of the node at an address, if it is the expected node.

        With a group, raises `ForeignGroup` if the node has another one of that name.
        """
        cluster = self._node.identity.cluster
        about = {} if group is None else {"group": group_of(group.name)}
        body = json.dumps(about).encode()
        answer = await ask_once(self._node, name, at, ClientOperation.WHO, body, timeout_s=LOOK_S)
        seen = _read(answer.body)
        if seen.get("cluster", cluster) != cluster:
            raise MemberNotReached(name, at, f"that is a node of cluster {seen['cluster']}")
        identity = str(seen.get("identity", ""))
        node = self._node
        refusal = node.identity.recognition.refusal(name, identity, node.configs())
        if refusal:
            raise IdentityRefused(refusal)
        if group is not None:
            known = node.identity.recognition.identities
            check_origin(name, origin(group, known), seen.get("group"))
        return identity


def _read(body: bytes) -> dict[str, Any]:
    """A node's description of itself; empty for an earlier version."""
    with suppress(ValueError, RecursionError):
        value = json.loads(body)
        if isinstance(value, dict):
            return value
    return {}


def _check_leads(group: Group[Any]) -> None:
    if not group.leading_term:
        reason = DropReason.NOT_LEADER if group.leader else DropReason.NO_LEADER
        raise ProposalDropped(reason, group.leader)


def _is_judged(result: Dropped) -> bool:
    return isinstance(result, QuorumAtRisk | NotCaughtUp)
