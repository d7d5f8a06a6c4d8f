"""A client of Raft nodes: asks whoever leads, and finds out who that is.

    async with RaftClient([parse_address("127.0.0.1:7001")]) as client:
        index, reply = await client.ask("default", Operation.PROPOSE, command)

1. Any node that was named may be asked; one that does not lead says who does, and is asked no more.
   One that is away, or cannot do it now, is left for the next, round and round until time is up.
   So is one that does not greet within `SILENT_S`, twice as long the next time: nothing was sent to
   it yet. A read that is not answered in that time is put to the next node as well, and the first
   answer counts: a node that hangs costs a read a moment, not its time limit.
2. Any number of requests may be under way; they share one connection to the node that leads.
3. What was sent and not answered may have happened: the connection ended, or time is up. A read is
   asked again; for everything else that is `MayHaveHappened`, because doing it twice may be wrong.
   `NoAnswer` says that nothing was done, so it is raised only if every node that the request was
   sent to has answered that it did nothing. A change of members goes by steps, and `not now` may
   follow the first of them: without a last answer its outcome is unknown too.
4. A watch has a connection of its own to the leader, over which comes what the group's machine
   sends (`event_feed.py`). Its name is drawn anew for each.

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
from lithify.raft.net.control_frames import (
    WIRE_VERSION,
    ClientEvent,
    ClientRequest,
    ClientResponse,
    Hello,
)
from lithify.raft.net.handshake import check_welcome, connect

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import TracebackType

    from lithify.raft.net.client_operations import Address
    from lithify.raft.net.transport import Tls

__all__ = ["NodeConnection", "RaftClient"]

SILENT_S = 0.5
CONNECT_S = 2.0
WAIT_S = 0.05
HOPS_MAX = 2
LEARNED_MAX = 200
TIMEOUT_S = 30.0

NAME_BYTES = 16

UNKNOWN = "it may have taken effect or not"

_BY_STEPS = (ClientOperation.CHANGE,)
_REPEATABLE = (
    ClientOperation.READ,
    ClientOperation.MEMBERS,
    ClientOperation.OVERVIEW,
    ClientOperation.WATCH,
    ClientOperation.BACKUP,
    ClientOperation.COMPACTION,
)
_ANYWHERE = (ClientOperation.READ, ClientOperation.MEMBERS, ClientOperation.OVERVIEW)
"""What may be asked of several nodes at once."""


@dataclass(slots=True)
class _Request:
    group: str
    operation: ClientOperation
    body: bytes
    under_way: bool = False
    """It was sent and not answered, and to do it twice may be wrong."""
    asked: Address | None = None
    """Who was asked last."""
    waits: bool = False
    """That node has not answered."""
    hops: int = 0
    """How often it was sent elsewhere."""
    begun: bool = False
    """A node has said `not now` to something that goes by steps; some may have been done."""
    why: str = "no node was asked"
    """What the last attempt came to."""
    refusal: str = ""
    """The last answer of a node."""
    absent: set[Address] = field(default_factory=set)
    """Who has said that there is no such group."""

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
        timeout_s: float = TIMEOUT_S,
        learns: bool = True,
    ) -> None:
        """`learns` is false for a client that may talk to the named nodes only."""
        if not addresses:
            raise InvalidInput("a client needs the address of at least one node")
        self._named = list(addresses)
        self._learned: list[Address] = []
        """Members of the last group a node was asked about, as that node knows them."""
        self._learns = learns
        self._learning: set[asyncio.Task[None]] = set()
        self._tls = tls
        self._feeds: list[EventFeed] = []
        self._closed = False
        self._context = None if tls is None else tls.context(server=False)
        self._timeout_s = timeout_s
        self._at = addresses[0]
        self._connection: NodeConnection | None = None
        self._connecting = asyncio.Lock()
        self._connect_s = SILENT_S if len(addresses) > 1 else CONNECT_S
        self._spare: RaftClient | None = None
        """Asks the other nodes while the one that was asked is silent."""

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
        """Hang up; watches end too."""
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
        """(index, reply) of what was asked for."""
        request = _Request(group, operation, body)
        try:
            async with asyncio.timeout(self._timeout_s):
                answer = await self._pursue(request)
        except TimeoutError:
            # A node that has not answered this one may be silent for good.
            self._turn_from(request.asked)
            raise self._timed_out(request) from None
        return answer.log_index, answer.body

    async def _pursue(self, request: _Request) -> ClientResponse:
        while (answer := await self._try(request)) is None:
            pass
        return answer

    def _timed_out(self, request: _Request) -> MayHaveHappened | NoAnswer:
        what = f"{request.operation.name.lower()} got no answer within {self._timeout_s:g} s"
        why = f"{request.asked} was asked and is silent" if request.waits else request.reasons
        if request.under_way or request.begun:
            return MayHaveHappened(f"{what}: {why}; {UNKNOWN}")
        return NoAnswer(f"{what}: {why}")

    async def ask_json(self, group: str, operation: ClientOperation, **given: object) -> Any:
        """The same, where both ways are JSON."""
        _, body = await self.ask(group, operation, json.dumps(given).encode())
        return json.loads(body)

    async def watch(self, group: str, command_of: Callable[[bytes], bytes]) -> EventFeed:
        """Be sent something by a group's machine; `command_of` a name has it begin."""
        name = token_bytes(NAME_BYTES)
        addresses = list(dict.fromkeys((self._at, *self._addresses)))
        own = RaftClient(addresses, tls=self._tls, timeout_s=self._timeout_s, learns=False)
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

    def _check_open(self) -> None:
        if self._closed:
            raise NoAnswer("the client was closed")

    @property
    def connection(self) -> NodeConnection:
        """The one to the node that was asked last."""
        assert self._connection is not None
        return self._connection

    async def _try(self, request: _Request) -> ClientResponse | None:
        """Ask once; None if it should be asked again."""
        try:
            connection = await self._connected()
        except (OSError, ProtocolError) as error:
            request.why = f"{self._at}: {str(error) or 'no answer'}"
            await self._next()
            return None
        request.under_way = request.operation not in _REPEATABLE
        request.asked, request.waits = connection.address, True
        if request.operation in _ANYWHERE:
            answer = await self._ask_others_too(connection, request)
        else:
            answer = await connection.ask(request.group, request.operation, request.body)
        request.waits = False
        if answer is None:
            request.why = f"{connection.address}: {connection.channel.reason}"
            if request.under_way:
                what = f"{request.operation.name.lower()} was sent and not answered"
                raise MayHaveHappened(f"{what}: {request.why}; {UNKNOWN}")
            await self._next()
            return None
        request.under_way = False
        self._learn_from(connection, request.group)
        if answer.outcome == OperationOutcome.DONE:
            return answer
        await self._go_on(request, connection.address, answer)
        return None

    @property
    def _addresses(self) -> list[Address]:
        """The named nodes, then the learned ones."""
        return list(dict.fromkeys((*self._named, *self._learned)))

    def _learn_from(self, connection: NodeConnection, group: str) -> None:
        """Ask a node for the members of a group, once per connection."""
        if not self._learns or not group or connection.was_asked_members:
            return
        connection.was_asked_members = True
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
        """Ask a node; if it is silent, the others as well."""
        given = (request.group, request.operation, request.body)
        first = asyncio.ensure_future(connection.ask(*given))
        tasks: set[asyncio.Task[Any]] = {first}
        try:
            done, _ = await asyncio.wait(tasks, timeout=SILENT_S)
            others = [each for each in self._addresses if each != connection.address]
            if done or not others:
                return await first
            if self._spare is None:
                self._spare = RaftClient(
                    others, tls=self._tls, timeout_s=self._timeout_s, learns=False
                )
            spare = self._spare
            second = asyncio.ensure_future(spare._pursue(_Request(*given)))  # noqa: SLF001
            tasks.add(second)
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if first.done() or isinstance(second.exception(), GroupNotFound):
                return await first
            answer = second.result()
            self._take_over(spare, connection)
            return answer
        finally:
            for task in tasks:
                task.cancel()
            # Nobody is told of what came too late.
            await asyncio.gather(*tasks, return_exceptions=True)

    def _take_over(self, spare: RaftClient, silent: NodeConnection) -> None:
        """Let the node be asked from now on that has answered instead of a silent one."""
        if self._connection is silent and spare._connection is not None:
            silent.retire()
            self._connection, self._at = spare._connection, spare._at
            spare._connection = None
        if self._spare is spare:
            self._spare = None

    async def _go_on(self, request: _Request, address: Address, answer: ClientResponse) -> None:
        """Find somebody else to ask; raises if that is of no use."""
        text = answer.body.decode(errors="replace")
        if answer.outcome == OperationOutcome.UNKNOWN and request.operation not in _REPEATABLE:
            raise MayHaveHappened(f"{text}; {UNKNOWN}")
        if answer.outcome == OperationOutcome.ABSENT:
            request.absent.add(address)
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
        if answer.outcome == OperationOutcome.ELSEWHERE:
            self._at = parse_address(text.split(" ", 2)[1])
            request.hops += 1
            if request.hops > HOPS_MAX:
                # Two nodes may each take the other for the leader, for a moment.
                await asyncio.sleep(WAIT_S)
        else:
            await self._next()

    async def _next(self) -> None:
        """Let somebody else be asked, after a while."""
        before = self._at
        await asyncio.sleep(WAIT_S)
        self._turn_from(before)

    def _turn_from(self, address: Address | None) -> None:
        """Let the next one be asked, if it is this one's turn."""
        if self._at == address:
            known = self._addresses
            place = known.index(address) + 1 if address in known else 0
            self._at = known[place % len(known)]

    async def _connected(self) -> NodeConnection:
        """A connection to the node that is to be asked; requests of the same moment share it."""
        async with self._connecting:
            found = self._connection
            if found is None or found.address != self._at or found.channel.closed:
                if found is not None:
                    found.retire()
                found = NodeConnection(self._at)
                try:
                    async with asyncio.timeout(self._connect_s):
                        hello = Hello(WIRE_VERSION, "", "", "", "{}")
                        await connect(self._at, hello, found.channel, self._context)
                        await found.welcomed
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
    """To one node."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self.channel = Channel(self._receive, self._lost)
        self.welcomed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._asked: dict[int, asyncio.Future[ClientResponse | None]] = {}
        self._number = 0
        self._watch = 0
        self._retired = False
        self.was_asked_members = False
        self.inbox = Inbox(lambda wanted: self.channel.read_on(wanted=wanted))
        """What the machine sends over it, if there is a watch."""

    async def ask(
        self, group: str, operation: ClientOperation, body: bytes
    ) -> ClientResponse | None:
        """The answer; None if the connection ended before it."""
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
        """Hang up when the last answer has come."""
        self._retired = True
        if not self._asked:
            self.channel.close()

    def _receive(self, channel: Channel, messages: list[tuple[str, Any]]) -> None:
        if not channel.greeted:
            check_welcome(channel, messages, "")
            channel.greet("", "")
            self.welcomed.set_result(None)
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
            # The second answer to it: nothing more will be sent.
            self.inbox.end()

    def _lost(self, channel: Channel) -> None:
        if not self.welcomed.done():
            self.welcomed.set_exception(ProtocolError(channel.reason))
            # Nobody may wait for it any more.
            self.welcomed.exception()
        self.inbox.end()
        for future in self._asked.values():
            if not future.done():
                future.set_result(None)
