"""A client of Raft nodes. Sends each request to the leader, which it finds by itself.

    async with RaftClient([parse_address("127.0.0.1:7001")]) as client:
        index, reply = await client.ask("default", Operation.PROPOSE, command)

1. The client may ask any named node; a node that does not lead answers with the leader's address.
   After a node that is down, or cannot serve the request now, the client asks the next one, in
   rounds until the time limit. So it does after a node that does not complete the greeting within
   `SILENT_S`, with twice that time at the next attempt: nothing was sent to it yet. A read without
   an answer in that time is sent to the next node too, and the first answer counts.
2. A leader that cannot serve the request now is asked again: the next node could only name it, and
   may be silent.
3. A node that answers is asked once per connection for the members' addresses. These follow the
   named ones in the rounds, so an outdated list of nodes is enough if one of them answers.
4. Any number of requests may be in flight; they share one connection to the leader.
5. A request that was sent and not answered may have happened: the connection closed, or the time is
   up. A read is repeated. Any other request raises `MayHaveHappened`, because repeating it may be
   wrong. `NoAnswer` says that nothing was done, so it is raised only if every node that received
   the request has answered that it did nothing. A change of members has several steps, and `not
   now` may come after the first: without a final answer its outcome is unknown too. `no leader`
   and `leader busy` come before the first. `ClusterSecretRefused` comes when all named nodes have
   another secret.
6. A watch has its own connection to the leader, which carries what the group's machine sends
   (`event_feed.py`). Its name is random.

One event loop.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from dataclasses import dataclass, field
from secrets import token_bytes
from typing import TYPE_CHECKING, Any, Self

from lithify.errors import InvalidInput, ProtocolError
from lithify.raft.client.event_feed import EventFeed, Inbox
from lithify.raft.net.channel import Channel
from lithify.raft.net.client_operations import (
    ClientOperation,
    GroupNotFound,
    MayHaveHappened,
    NoAnswer,
    OperationOutcome,
    OperationRefused,
    PartlyDone,
    encode_watch,
    parse_address,
)
from lithify.raft.net.cluster_secret import ClusterSecretRefused
from lithify.raft.net.control_frames import (
    WIRE_VERSION,
    ClientEvent,
    ClientRequest,
    ClientResponse,
    Hello,
)
from lithify.raft.net.handshake import Greeting

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Sequence
    from types import TracebackType

    from lithify.raft.net.client_operations import Address
    from lithify.raft.net.cluster_secret import ClusterSecret
    from lithify.raft.net.transport import Tls

__all__ = ["REPEATABLE", "TIMEOUT_S", "NodeConnection", "RaftClient"]

SILENT_S = 0.5
CONNECT_S = 2.0
WAIT_S = 0.05
HOPS_MAX = 2
LEARNED_MAX = 200
TIMEOUT_S = 30.0

NAME_BYTES = 16

UNKNOWN = "it may have taken effect or not"

_BY_STEPS = (ClientOperation.CHANGE,)
REPEATABLE = (
    ClientOperation.READ,
    ClientOperation.MEMBERS,
    ClientOperation.OVERVIEW,
    ClientOperation.WATCH,
    ClientOperation.BACKUP,
    ClientOperation.COMPACTION,
)
"""Operations that change nothing, or the same when they are done twice."""
_ANYWHERE = (ClientOperation.READ, ClientOperation.MEMBERS, ClientOperation.OVERVIEW)
"""Operations that may be sent to several nodes at once."""


@dataclass(slots=True)
class _Request:
    group: str
    operation: ClientOperation
    body: bytes
    in_flight: bool = False
    """It was sent and not answered, and must not be repeated."""
    asked: Address | None = None
    """The node that was asked last."""
    waits: bool = False
    """That node has not answered."""
    hops: int = 0
    """The number of redirects."""
    begun: bool = False
    """A node has answered `not now` to a request of several steps; some may have been done."""
    why: str = "no node was asked"
    """The outcome of the last attempt."""
    refusal: str = ""
    """The last answer of a node."""
    absent: set[Address] = field(default_factory=set)
    """Nodes that have answered that they do not have the group, since a node that has it."""
    unproven: set[Address] = field(default_factory=set)
    """Nodes that do not have the same cluster secret."""

    @property
    def reasons(self) -> str:
        """Why it is not done: the last answer, and the last attempt if that had none."""
        return "; ".join(dict.fromkeys(text for text in (self.refusal, self.why) if text))


class RaftClient:
    """See the module."""

    def __init__(
        self,
        addresses: Sequence[Address],
        *,
        tls: Tls | None = None,
        secret: ClusterSecret | None = None,
        timeout_s: float = TIMEOUT_S,
        learns: bool = True,
    ) -> None:
        """`secret` is that of the cluster, if it has one.

        `learns` is false for a client that may talk to the named nodes only.
        """
        if not addresses:
            raise InvalidInput("a client needs the address of at least one node")
        self._named = list(addresses)
        self._learned: list[Address] = []
        """Members of the last group a node was asked about, as that node knows them."""
        self._learns = learns
        self._learning: set[asyncio.Task[None]] = set()
        self._tls = tls
        self._secret = secret
        self._feeds: list[EventFeed] = []
        self._closed = False
        self._context = None if tls is None else tls.context(server=False)
        self._timeout_s = timeout_s
        self._at = addresses[0]
        self._connection: NodeConnection | None = None
        self._connecting = asyncio.Lock()
        self._connect_s = SILENT_S if len(addresses) > 1 else CONNECT_S
        self._spare: RaftClient | None = None
        """Asks the other nodes while the node that was asked is silent."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections, including those of watches."""
        self._closed = True
        for feed in self._feeds:
            feed.close()
        if self._spare is not None:
            self._spare.close()
        for task in self._learning:
            task.cancel()
        if self._connection is not None:
            self._connection.channel.close()

    async def ask(
        self, group: str, operation: ClientOperation, body: bytes = b"{}"
    ) -> tuple[int, bytes]:
        """Send a request; returns (index, reply)."""
        request = _Request(group, operation, body)
        try:
            async with asyncio.timeout(self._timeout_s):
                answer = await self._ask_until_answered(request)
        except TimeoutError:
            # The node may never answer: ask another one next time.
            self._skip(request.asked)
            raise self._timed_out(request) from None
        return answer.log_index, answer.body

    async def _ask_until_answered(self, request: _Request) -> ClientResponse:
        while (answer := await self._try(request)) is None:
            pass
        return answer

    def _timed_out(self, request: _Request) -> MayHaveHappened | NoAnswer:
        what = f"{request.operation.name.lower()} got no answer within {self._timeout_s:g} s"
        why = f"{request.asked} was asked and is silent" if request.waits else request.reasons
        if request.in_flight or request.begun:
            return MayHaveHappened(f"{what}: {why}; {UNKNOWN}")
        return NoAnswer(f"{what}: {why}")

    async def ask_json(self, group: str, operation: ClientOperation, **given: object) -> Any:
        """As `ask`, with JSON in both directions."""
        _, body = await self.ask(group, operation, json.dumps(given).encode())
        return json.loads(body)

    async def watch(self, group: str, command_of: Callable[[bytes], bytes]) -> EventFeed:
        """Start a watch; `command_of` returns the command that starts it under a name."""
        name = token_bytes(NAME_BYTES)
        addresses = list(dict.fromkeys((self._at, *self._addresses)))
        own = self._copy(addresses)
        try:
            self._check_open()
            body = encode_watch(name, command_of(name))
            _, reply = await own.ask(group, ClientOperation.WATCH, body)
            self._check_open()
        except BaseException:
            own.close()
            raise
        self._at = own.connection.address
        feed = EventFeed(own.connection, group, reply)
        self._feeds = [*(each for each in self._feeds if not each.over), feed]
        return feed

    def _copy(self, addresses: Sequence[Address]) -> RaftClient:
        """A client with connections of its own."""
        return RaftClient(
            addresses, tls=self._tls, secret=self._secret, timeout_s=self._timeout_s, learns=False
        )

    def _check_open(self) -> None:
        if self._closed:
            raise NoAnswer("the client was closed")

    @property
    def connection(self) -> NodeConnection:
        """The connection to the node that was asked last."""
        assert self._connection is not None
        return self._connection

    async def _try(self, request: _Request) -> ClientResponse | None:
        """One attempt; None if the request must be repeated."""
        try:
            connection = await self._connected()
        except (OSError, ProtocolError) as error:
            request.why = f"{self._at}: {str(error) or 'no answer'}"
            if isinstance(error, ClusterSecretRefused):
                request.unproven.add(self._at)
                if request.unproven.issuperset(self._named):
                    raise
            await self._next()
            return None
        request.in_flight = request.operation not in REPEATABLE
        request.asked, request.waits = connection.address, True
        if request.operation in _ANYWHERE:
            answer = await self._ask_others_too(connection, request)
        else:
            answer = await connection.ask(request.group, request.operation, request.body)
        request.waits = False
        if answer is None:
            request.why = f"{connection.address}: {connection.channel.reason}"
            if request.in_flight:
                what = f"{request.operation.name.lower()} was sent and not answered"
                raise MayHaveHappened(f"{what}: {request.why}; {UNKNOWN}")
            await self._next()
            return None
        request.in_flight = False
        self._learn_from(connection, request.group)
        if answer.outcome == OperationOutcome.DONE:
            return answer
        await self._choose_next(request, connection.address, answer)
        return None

    @property
    def _addresses(self) -> list[Address]:
        """The named nodes, then the learned ones."""
        return list(dict.fromkeys((*self._named, *self._learned)))

    def _learn_from(self, connection: NodeConnection, group: str) -> None:
        """Ask a node for the members of a group, once per connection."""
        if not self._learns or not group or connection.has_requested_members:
            return
        connection.has_requested_members = True
        task = asyncio.create_task(self._learn(connection, group))
        self._learning.add(task)
        task.add_done_callback(self._learning.discard)

    async def _learn(self, connection: NodeConnection, group: str) -> None:
        answer = await connection.ask(group, ClientOperation.MEMBERS, b"{}")
        if answer is not None and answer.outcome == OperationOutcome.DONE:
            with suppress(ValueError, TypeError, KeyError, AttributeError, InvalidInput):
                book = json.loads(answer.body)["book"]
                self._learned = [parse_address(at) for at in book.values()][:LEARNED_MAX]

    async def _ask_others_too(
        self, connection: NodeConnection, request: _Request
    ) -> ClientResponse | None:
        """Ask a node; if it is silent, ask the others too."""
        given = (request.group, request.operation, request.body)
        first = asyncio.ensure_future(connection.ask(*given))
        tasks: set[asyncio.Task[Any]] = {first}
        try:
            done, _ = await asyncio.wait(tasks, timeout=SILENT_S)
            others = [each for each in self._addresses if each != connection.address]
            if done or not others:
                return await first
            if self._spare is None:
                self._spare = self._copy(others)
            spare = self._spare
            second = asyncio.ensure_future(spare._ask_until_answered(_Request(*given)))  # noqa: SLF001
            tasks.add(second)
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if first.done() or isinstance(second.exception(), GroupNotFound):
                return await first
            answer = second.result()
            self._adopt(spare, connection)
            return answer
        finally:
            for task in tasks:
                task.cancel()
            # Late errors are ignored.
            await asyncio.gather(*tasks, return_exceptions=True)

    def _adopt(self, spare: RaftClient, silent: NodeConnection) -> None:
        """Use the connection that has answered in place of the silent one."""
        if self._connection is silent and spare._connection is not None:
            silent.retire()
            self._connection, self._at = spare._connection, spare._at
            spare._connection = None
        if self._spare is spare:
            self._spare = None

    async def _choose_next(
        self, request: _Request, address: Address, answer: ClientResponse
    ) -> None:
        """Choose the node to ask next; raises if the answer is final."""
        text = answer.body.decode(errors="replace")
        if answer.outcome == OperationOutcome.UNKNOWN and request.operation not in REPEATABLE:
            raise MayHaveHappened(f"{text}; {UNKNOWN}")
        if answer.outcome == OperationOutcome.ABSENT:
            request.absent.add(address)
        else:
            # The group may move to a node that was asked before.
            request.absent.clear()
        if answer.outcome == OperationOutcome.REFUSED:
            raise OperationRefused(text)
        if answer.outcome == OperationOutcome.BEGUN:
            raise PartlyDone(text)
        if request.absent.issuperset(self._named):
            raise GroupNotFound(text)
        request.why = request.refusal = f"{address}: {text}"
        request.begun |= (
            answer.outcome == OperationOutcome.NOT_NOW and request.operation in _BY_STEPS
        )
        if answer.outcome == OperationOutcome.OTHER_NODE:
            self._at = parse_address(text.split(" ", 2)[1])
            request.hops += 1
            if request.hops > HOPS_MAX:
                # For a moment, two nodes may each name the other as the leader.
                await asyncio.sleep(WAIT_S)
        elif answer.outcome == OperationOutcome.LEADER_BUSY:
            await asyncio.sleep(WAIT_S)
        else:
            await self._next()

    async def _next(self) -> None:
        """Choose the next node, after a pause."""
        before = self._at
        await asyncio.sleep(WAIT_S)
        self._skip(before)

    def _skip(self, address: Address | None) -> None:
        """Choose the node after this one, if this one is the current."""
        if self._at == address:
            known = self._addresses
            place = known.index(address) + 1 if address in known else 0
            self._at = known[place % len(known)]

    async def _connected(self) -> NodeConnection:
        """A connection to the current node; concurrent requests share it."""
        async with self._connecting:
            found = self._connection
            if found is None or found.address != self._at or found.channel.closed:
                if found is not None:
                    found.retire()
                hello = Hello(WIRE_VERSION, "", "", "", "{}")
                found = NodeConnection(self._at, Greeting(hello, self._secret))
                try:
                    async with asyncio.timeout(self._connect_s):
                        await found.open(self._context)
                except TimeoutError:
                    # The network may be slow, not the node.
                    found.channel.abort("it was given up")
                    self._connect_s = min(2 * self._connect_s, CONNECT_S)
                    raise
                except BaseException:
                    found.channel.abort("it was given up")
                    raise
                self._connection = found
            return found


class NodeConnection:
    """A connection to one node."""

    def __init__(self, address: Address, greeting: Greeting) -> None:
        self.address = address
        self._greeting = greeting
        self.channel = Channel(self._receive, self._lost)
        self._welcomed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._asked: dict[int, asyncio.Future[ClientResponse | None]] = {}
        self._number = 0
        self._watch = 0
        self._retired = False
        self.has_requested_members = False
        self.inbox = Inbox(lambda wanted: self.channel.read_on(wanted=wanted))
        """Messages of the machine, if there is a watch."""

    async def open(self, context: ssl.SSLContext | None) -> None:
        """Connect, and wait until the node has answered the greeting."""
        await self._greeting.connect(self.address, self.channel, context)
        await self._welcomed

    async def ask(
        self, group: str, operation: ClientOperation, body: bytes
    ) -> ClientResponse | None:
        """The answer; None if the connection closed before it."""
        self._number += 1
        number = self._number
        if operation == ClientOperation.WATCH:
            self._watch = number
        future: asyncio.Future[ClientResponse | None] = asyncio.get_running_loop().create_future()
        self._asked[number] = future
        self.channel.send(group, ClientRequest(number, operation, body))
        try:
            return await future
        finally:
            self._asked.pop(number, None)
            if self._retired:
                self.retire()

    def retire(self) -> None:
        """Close the connection after the last pending answer."""
        self._retired = True
        if not self._asked:
            self.channel.close()

    def _receive(self, channel: Channel, messages: list[tuple[str, Any]]) -> None:
        if not channel.greeted:
            try:
                welcome = self._greeting.receive(channel, messages)
            except ClusterSecretRefused as error:
                self._fail(error)
                channel.abort(str(error))
                return
            if welcome is not None:
                channel.greet("", "")
                self._welcomed.set_result(None)
            return
        for _, message in messages:
            if isinstance(message, ClientEvent):
                self.inbox.put(message.body)
            elif isinstance(message, ClientResponse):
                self._answered(message)
            else:
                raise ProtocolError(f"{type(message).__name__} is no answer")

    def _answered(self, answer: ClientResponse) -> None:
        future = self._asked.get(answer.number)
        if future is not None and not future.done():
            future.set_result(answer)
        elif answer.number == self._watch:
            # The second answer to a watch ends it.
            self.inbox.end()

    def _fail(self, error: ProtocolError) -> None:
        if not self._welcomed.done():
            self._welcomed.set_exception(error)
            # Marks the exception as retrieved.
            self._welcomed.exception()

    def _lost(self, channel: Channel) -> None:
        self._fail(ProtocolError(channel.reason))
        self.inbox.end()
        for future in self._asked.values():
            if not future.done():
                future.set_result(None)
