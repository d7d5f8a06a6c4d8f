"""Requests of the process that runs a node, to groups here or elsewhere.

    index, reply = await requests.ask("orders", ClientOperation.PROPOSE, command)

1. A request goes to the group on this node, as those of clients do (`client_requests.py`). Any
   member answers reads; the leader does everything else.
2. If nothing was done there, because another member leads or the group is not here, the request
   goes to the other nodes over the cluster port (`raft/client/client.py`), which finds the leader.
   A cluster of one has no others: it retries until the time limit.
3. Errors are those of a client. `MayHaveHappened` says that the outcome is unknown: the request was
   begun and not answered, because leadership was lost, the time is up, or the node stops.
   `NoAnswer` says that nothing was done. A refusal by this node is raised as it is.

Called in the node's event loop.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lithify.errors import InvalidInput, LithifyError, LogClosed
from lithify.raft.client.client import REPEATABLE, TIMEOUT_S, RaftClient
from lithify.raft.commands import CommandResult
from lithify.raft.core.configuration import check_name
from lithify.raft.core.errors import InvalidChange
from lithify.raft.errors import GroupAbsent, MemberAbsent, MemberReadsOnly
from lithify.raft.net.client_operations import (
    Address,
    ClientOperation,
    MayHaveHappened,
    NoAnswer,
    OperationOutcome,
    OperationRefused,
    parse_address,
)
from lithify.raft.node.member_changes import AGAIN_S, ChangeInterrupted
from lithify.raft.node.settings import VOTERS_MAX

if TYPE_CHECKING:
    from collections.abc import Callable

    from lithify.raft.commands import Done, Result
    from lithify.raft.node.client_requests import ClientRequestHandler
    from lithify.raft.node.node import RaftNode

__all__ = ["ProcessRequests"]


@dataclass(slots=True)
class _Forwarding:
    """A client of the other nodes, for one group."""

    addresses: list[Address]
    client: RaftClient
    in_flight: int = 0
    is_replaced: bool = False
    """Another client is used from now on; this one is closed when it is idle."""

    def end(self) -> None:
        """Another client is used."""
        self.is_replaced = True
        self.close_if_idle()

    def close_if_idle(self) -> None:
        """Close the client when nothing uses it any longer."""
        if self.is_replaced and not self.in_flight:
            self.client.close()


class ProcessRequests:
    """See the module."""

    def __init__(self, node: RaftNode, handler: ClientRequestHandler) -> None:
        self._node = node
        self._handler = handler
        self._pending: set[asyncio.Future[Result]] = set()
        self._forwarding: dict[str, _Forwarding] = {}
        self._tasks: set[asyncio.Task[tuple[int, bytes]]] = set()
        self._closed = False

    async def close(self) -> None:
        """The node stops: end all requests."""
        self._closed = True
        stops = LogClosed("the node stops")
        for future in self._pending:
            if not future.done():
                future.set_result(stops)
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for each in self._forwarding.values():
            each.client.close()

    async def ask(
        self, name: str, operation: ClientOperation, body: bytes, timeout_s: float = TIMEOUT_S
    ) -> CommandResult:
        """Send a request to a group; returns (index, reply)."""
        if self._node.reads_only:
            raise MemberReadsOnly(self._node.identity.node, self._node.others)
        loop = asyncio.get_running_loop()
        limit_s = loop.time() + timeout_s
        begun = False
        while True:
            result = await self._ask_here(name, operation, body, limit_s)
            if isinstance(result, CommandResult):
                return result
            outcome, text = self._handler.outcome(result)
            if outcome in (OperationOutcome.REFUSED, OperationOutcome.BEGUN):
                raise result
            if outcome is OperationOutcome.UNKNOWN:
                raise MayHaveHappened(text.decode()) from result
            # Nothing was done here, except by a change of members whose first step stays.
            begun = begun or isinstance(result, ChangeInterrupted)
            # A leader that is busy is asked again: the others could only name it.
            others = [] if outcome is OperationOutcome.LEADER_BUSY else self._others(name)
            if others:
                return await self._forward(name, operation, body, others, begun=begun)
            if isinstance(result, GroupAbsent):
                raise result
            if loop.time() + AGAIN_S > limit_s:
                raise _unanswered(operation, str(result), begun=begun) from result
            await asyncio.sleep(AGAIN_S)

    async def read_local(self, name: str, query: bytes) -> CommandResult:
        """Query a group at the state of this node."""
        group = self._node.groups.get(name)
        if group is None:
            raise GroupAbsent(name, self._node.identity.node)

        def begin(done: Done) -> None:
            if not group.query_local(query, done):
                self._node.mark(group)

        result = await self._answered(begin)
        if isinstance(result, LithifyError):
            raise result
        return result

    async def administer(
        self, name: str, operation: ClientOperation, given: dict[str, Any]
    ) -> dict[str, Any]:
        """An operation that this node does by itself; the body and the answer are objects."""
        result = await self._ask_here(name, operation, json.dumps(given).encode(), None)
        if isinstance(result, LithifyError):
            raise result
        answer: dict[str, Any] = json.loads(result.reply)
        return answer

    async def create_group(self, name: str, members: list[str]) -> None:
        """Create a group of which this node is a member."""
        body = json.dumps({"members": members}).encode()
        result = await self._ask_here(name, ClientOperation.CREATE, body, None)
        if isinstance(result, LithifyError):
            raise result

    # --- members ----------------------------------------------------------------------------

    async def add_member(self, name: str, address: str, *, voter: bool) -> None:
        """Add a node to the first group."""
        if self._node.settings.listen is None and not self._node.reads_only:
            own = self._node.identity.node
            raise InvalidInput(f"node {own} has no address for other nodes: start it with one")
        group = self._node.groups.get(self._node.settings.first_group)
        voters = frozenset() if group is None else group.config.voters
        if voter and name not in voters and len(voters) >= VOTERS_MAX:
            what = f"the cluster has {VOTERS_MAX} voters: {', '.join(sorted(voters))}"
            raise InvalidInput(f"{what}. {name} can be a learner")
        book = {name: str(parse_address(address))}
        await self.change_member("+" if voter else "~", name, book)

    async def remove_member(self, name: str) -> None:
        """Remove a node from the first group."""
        try:
            await self.change_member("-", name)
        except (InvalidChange, OperationRefused) as error:
            group = self._node.groups.get(self._node.settings.first_group)
            members = frozenset() if group is None else group.config.members
            if members and name not in members:
                raise MemberAbsent(name, members) from error
            raise

    async def change_member(self, sign: str, name: str, book: dict[str, str] | None = None) -> None:
        """Change a member of the first group; `sign` is that of `ConfChange.parse`."""
        check_name(name)
        body = json.dumps({"change": f"{sign}{name}", "book": book or {}}).encode()
        await self.ask(self._node.settings.first_group, ClientOperation.CHANGE, body)

    # --- here -------------------------------------------------------------------------------

    async def _ask_here(
        self, name: str, operation: ClientOperation, body: bytes, limit_s: float | None
    ) -> Result:
        def begin(done: Done) -> None:
            try:
                self._handler.begin(name, operation, body, done)
            except LithifyError as error:
                done(error)

        try:
            async with asyncio.timeout_at(limit_s):
                result = await self._answered(begin)
        except TimeoutError:
            raise _unanswered(operation, "no answer in time", begun=True) from None
        if self._closed and isinstance(result, LogClosed):
            raise _unanswered(operation, str(result), begun=True)
        return result

    async def _answered(self, begin: Callable[[Done], None]) -> Result:
        if self._closed:
            raise NoAnswer("the node stops")
        future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()

        def done(result: Result) -> None:
            if not future.done():
                future.set_result(result)

        begin(done)
        self._pending.add(future)
        try:
            return await future
        finally:
            self._pending.discard(future)

    # --- elsewhere --------------------------------------------------------------------------

    def _others(self, name: str) -> list[Address]:
        """The addresses of the other members of a group, the leader first."""
        node, own = self._node, self._node.identity.node
        group, book = node.groups.get(name), node.identity.book
        members = set(book) if group is None else group.config.members & book.keys()
        leader = "" if group is None else group.leader
        ordered = sorted(members - {own}, key=lambda each: (each != leader, each))
        return [parse_address(book[each]) for each in ordered]

    async def _forward(
        self,
        name: str,
        operation: ClientOperation,
        body: bytes,
        others: list[Address],
        *,
        begun: bool,
    ) -> CommandResult:
        used = self._forwarding.get(name)
        if used is not None and set(used.addresses) != set(others):
            # Members have moved, come or gone: those of before may all be absent.
            used.end()
            used = None
        if used is None:
            transport = self._node.transport
            tls, secret = self._node.settings.tls, transport.secret
            used = _Forwarding(others, RaftClient(others, tls=tls, secret=secret))
            self._forwarding[name] = used
        task = asyncio.ensure_future(used.client.ask(name, operation, body))
        self._tasks.add(task)
        used.in_flight += 1
        try:
            return CommandResult(*await task)
        except NoAnswer as error:
            raise _unanswered(operation, str(error), begun=begun) from error
        except asyncio.CancelledError:
            if not self._closed:
                task.cancel()
                raise
            raise _unanswered(operation, "the node stops", begun=True) from None
        finally:
            used.in_flight -= 1
            used.close_if_idle()
            self._tasks.discard(task)


def _unanswered(operation: ClientOperation, why: str, *, begun: bool) -> MayHaveHappened | NoAnswer:
    """The error of a request without an answer; `begun` says that it may have been done."""
    what = f"{operation.name.lower()} was not answered: {why}"
    if not begun or operation in REPEATABLE:
        return NoAnswer(what)
    return MayHaveHappened(f"{what}; it may have taken effect or not")
