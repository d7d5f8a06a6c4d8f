"""Answers the requests of a node's clients; the groups do the work.

A client with `ASKED_MAX` requests or `ASKED_BYTES_MAX` in flight is not read from until some are
answered. Neither is a client that does not read its answers. So memory is bounded by the number of
clients. Commands and reads go to their group at once; other requests are started in portions, so
that thousands of them do not hold the loop.

Errors become outcomes (`raft/net/client_operations.py`): a request that was not accepted is
`other node`, with the leader's address, `leader busy` or `not now`; one with an unknown outcome is
`unknown`; all others are refused.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from lithify.errors import InvalidInput, LithifyError
from lithify.logger import get_logger
from lithify.raft import commands as requests
from lithify.raft.core import (
    ConfChange,
    Dropped,
    DropReason,
    MemberChange,
    MemberStopped,
    Mode,
    NotCaughtUp,
    Op,
    QuorumAtRisk,
)
from lithify.raft.core.configuration import check_name
from lithify.raft.errors import (
    AddressesNotRecorded,
    ClientTooSlow,
    CreationUnknown,
    EntryUnreadable,
    GroupAbsent,
    LearnersNotPromoted,
    MemberNotReached,
    OutcomeUnknown,
)
from lithify.raft.group.overview import place_overview, wal_overview
from lithify.raft.net.client_operations import (
    ClientOperation,
    MayHaveHappened,
    NoAnswer,
    OperationOutcome,
    parse_address,
)
from lithify.raft.net.control_frames import ClientResponse, ClientResponses
from lithify.raft.node.group_origin import origin
from lithify.raft.node.leadership_transfer import LeadershipTransfers, in_force
from lithify.raft.node.member_changes import (
    AGAIN_S,
    CHANGE_S,
    LOOK_S,
    ChangeInterrupted,
    MemberChanges,
)
from lithify.raft.node.watches import Watches
from lithify.raft.storage.file_names import group_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from lithify.raft.group.group import Group
    from lithify.raft.net.channel import Channel
    from lithify.raft.net.control_frames import ClientRequests
    from lithify.raft.node.node import RaftNode

__all__ = ["ClientRequestHandler"]

T = TypeVar("T")

log = get_logger("lithify.raft")

ASKED_MAX = 4096
ASKED_BYTES_MAX = 32 * 2**20
COMMAND_BYTES_MAX = 16 * 2**20
JSON_BYTES_MAX = 64 * 2**10
"""A request about the group itself: thousands of members. Parsing it takes some milliseconds."""
PORTION = 128
"""Requests, other than commands and reads, that are started in one turn of the loop: each takes up
to 30 µs."""
REPLIES_BYTES_MAX = 2**20
"""Replies to a run up to this size are sent as one message."""


_OF_PROCESS = (ClientOperation.PROCESS, ClientOperation.PROCESS_READ)
_WITH_DATA = (ClientOperation.PROPOSE, ClientOperation.READ, *_OF_PROCESS)
_OF_NODE = (ClientOperation.OVERVIEW, ClientOperation.WHO, ClientOperation.QUESTION)
_UNKNOWN = (OutcomeUnknown, CreationUnknown, AddressesNotRecorded, MayHaveHappened)


@dataclass(slots=True)
class _Asked:
    """The requests of a client that are in flight."""

    requests: int = 0
    size_bytes: int = 0
    waits: bool = False

    @property
    def is_over_limit(self) -> bool:
        return self.requests >= ASKED_MAX or self.size_bytes >= ASKED_BYTES_MAX


class ClientRequestHandler:
    """See the module."""

    def __init__(self, node: RaftNode) -> None:
        self._node = node
        self._clients: dict[Channel, _Asked] = {}
        self._creating: set[Group[Any]] = set()
        """These take no commands yet: another node may create a group of the same name."""
        self.watching = Watches(self._refuse)
        self.handovers = LeadershipTransfers()
        self._turn = 0
        self._queue: deque[Callable[[], None]] = deque()
        """Starts of requests."""
        self.changes = MemberChanges(node)

    def forget(self, channel: Channel) -> None:
        """A client has disconnected."""
        self._clients.pop(channel, None)
        self.watching.remove_client(channel)

    def ask(self, channel: Channel, name: str, batch: ClientRequests) -> None:
        """Start the requests of a client, and answer each when it is done."""
        client = self._clients.setdefault(channel, _Asked())
        client.requests += len(batch.bodies)
        client.size_bytes += sum(map(len, batch.bodies))

        def done(stretch: slice, result: requests.CommandResults | LithifyError) -> None:
            numbers, bodies = batch.numbers[stretch], batch.bodies[stretch]
            if isinstance(result, requests.CommandResults):
                _send_replies(channel, name, numbers, result)
            else:
                for number in numbers:
                    self._refuse(channel, name, number, result)
            client.requests -= len(bodies)
            client.size_bytes -= sum(map(len, bodies))
            if client.waits and not client.is_over_limit:
                client.waits = False
                channel.read_on(wanted=True)

        group = self._node.groups.get(name)
        is_usable = group not in self._creating and _fits(batch)
        if batch.operation == ClientOperation.PROPOSE and group is not None and is_usable:
            group.propose_many(batch.bodies, done)
            self._node.mark(group)
        elif batch.operation == ClientOperation.READ and group is not None and is_usable:
            for place, body in enumerate(batch.bodies):
                group.read(body, _one(done, place))
            self._node.mark(group)
        elif batch.operation in _OF_PROCESS and not name and _fits(batch):
            self._node.questions.of_clients(batch.bodies, done)
        else:
            if not self._queue:
                asyncio.get_running_loop().call_soon(self._start_portion)
            for place in range(len(batch.bodies)):
                start = partial(self._start, channel, name, batch, place, _one(done, place))
                self._queue.append(start)
        if client.is_over_limit and not client.waits:
            client.waits = True
            channel.read_on(wanted=False)

    def _start_portion(self) -> None:
        for _ in range(min(PORTION, len(self._queue))):
            self._queue.popleft()()
        if self._queue:
            asyncio.get_running_loop().call_soon(self._start_portion)

    def _start(
        self, channel: Channel, name: str, batch: ClientRequests, place: int, done: requests.Done
    ) -> None:
        if channel.closed:
            # The client is gone, and was forgotten.
            return
        try:
            with _answered(done):
                if batch.operation == ClientOperation.WATCH:
                    self._watch(channel, name, batch.numbers[place], batch.bodies[place], done)
                else:
                    self.begin(name, batch.operation, batch.bodies[place], done)
        except Exception:
            # The client gets no answer and is disconnected; the rest of the portion is started.
            log.exception("a request failed", group=name, peer=channel.peer)
            channel.abort("a request failed")

    def begin(self, name: str, operation: int, body: bytes, done: requests.Done) -> None:
        """Start a request for a group; `done` gets its result, unless an error is raised."""
        is_command = operation in _WITH_DATA
        limit = COMMAND_BYTES_MAX if is_command else JSON_BYTES_MAX
        if len(body) > limit:
            raise InvalidInput(f"a request of {len(body)} bytes is larger than the limit {limit}")
        group = self._node.groups.get(name)
        if operation == ClientOperation.CREATE:
            self._create(name, _parse(body), done)
        elif operation in _OF_NODE and not name:
            self._begin_of_node(operation, body, done)
        elif operation in _OF_PROCESS and not name:
            self._node.questions.of_clients([body], requests.single(done))
        elif group is None:
            raise self._missing(name)
        elif group in self._creating and is_command:
            raise Dropped(DropReason.CHANGE_IN_FLIGHT)
        else:
            if operation == ClientOperation.PROPOSE:
                group.propose(body, done)
            elif operation == ClientOperation.READ:
                group.read(body, done)
            elif operation == ClientOperation.DROP:
                self._check_drop(name)
                group.propose_end(_with_index(done))
            elif operation in (ClientOperation.CHANGE, ClientOperation.MOVE):
                self._change(group, operation, _parse(body), done)
            else:
                self._administer(group, operation, _parse(body), done)
            self._node.mark(group)

    def _begin_of_node(self, operation: int, body: bytes, done: requests.Done) -> None:
        """A request without a group, about the node."""
        if operation == ClientOperation.OVERVIEW:
            done(_reply(self._node_overview()))
        elif operation == ClientOperation.WHO:
            done(_reply(self._who() | self._place(_parse(body))))
        else:
            self._node.questions.begin(_parse(body), done)

    def _check_drop(self, name: str) -> None:
        settings = self._node.settings
        if settings.keeps_first_group and name == settings.first_group:
            raise InvalidInput(f"group {name} is that of the cluster and cannot be dropped")

    def _change(
        self, group: Group[Any], operation: int, given: dict[str, Any], done: requests.Done
    ) -> None:
        if operation == ClientOperation.MOVE:
            self.changes.move(group, _book(given), done)
        else:
            change = ConfChange.parse(_given(given, "change", str))

            def ended(result: requests.Result) -> None:
                status, known = group.status(), self._node.identity.book
                if isinstance(result, InvalidInput) and in_force(status, change, known):
                    done(_reply({"index": status.config_index, "already": True}))
                else:
                    done(result)

            self.changes.begin(group, change, _book(given), ended)

    def _watch(
        self, channel: Channel, name: str, number: int, body: bytes, done: requests.Done
    ) -> None:
        group = self._node.groups.get(name)
        if group is None:
            raise self._missing(name)
        self.watching.begin(group, channel, number, body, done)
        self._node.mark(group)

    def _missing(self, name: str) -> LithifyError:
        """The error for a group that is not here."""
        if self._node.is_waiting(name):
            return Dropped(DropReason.NO_LEADER)
        return GroupAbsent(name, self._node.identity.node)

    def _refuse(self, channel: Channel, name: str, number: int, error: LithifyError) -> None:
        outcome, text = self.outcome(error)
        channel.send(name, ClientResponse(number, outcome, 0, text))

    def outcome(self, result: LithifyError) -> tuple[OperationOutcome, bytes]:
        """The outcome that an error means to a client, and its text."""
        outcome, text = OperationOutcome.REFUSED, str(result)
        if isinstance(result, QuorumAtRisk | NotCaughtUp):
            pass
        elif isinstance(result, Dropped) and result.reason is not DropReason.NOT_A_VOTER:
            outcome = OperationOutcome.NOT_NOW
            at = self._node.identity.book.get(result.leader)
            if isinstance(result, ChangeInterrupted):
                pass
            elif result.reason is DropReason.NO_LEADER:
                outcome = OperationOutcome.NO_LEADER
            elif result.reason is DropReason.NOT_LEADER and at is not None:
                outcome, text = OperationOutcome.OTHER_NODE, f"{result.leader} {at}"
            elif result.leader == self._node.identity.node:
                outcome = OperationOutcome.LEADER_BUSY
        elif isinstance(result, ClientTooSlow | MemberStopped | NoAnswer):
            outcome = OperationOutcome.NOT_NOW
        elif isinstance(result, EntryUnreadable):
            outcome, text = self._other_node(text)
        elif isinstance(result, _UNKNOWN):
            outcome = OperationOutcome.UNKNOWN
        elif isinstance(result, GroupAbsent):
            outcome = OperationOutcome.ABSENT
        elif isinstance(result, LearnersNotPromoted):
            outcome = OperationOutcome.BEGUN
        # What a client has sent may not be encodable.
        return outcome, text.encode(errors="replace")

    def _other_node(self, why: str) -> tuple[OperationOutcome, str]:
        """Another node may be able to read what is damaged here."""
        others = self._node.transport.connected
        if not others:
            return OperationOutcome.NOT_NOW, why
        self._turn += 1
        name = others[self._turn % len(others)]
        return OperationOutcome.OTHER_NODE, f"{name} {self._node.identity.book[name]} {why}"

    # --- operations outside the machine ------------------------------------------------------

    def _create(self, name: str, given: dict[str, Any], done: requests.Done) -> None:
        node = self._node
        members = [str(member) for member in _given(given, "members", list)]
        _check_known(node, members)
        others = sorted(set(members) - {node.identity.node})
        loop = asyncio.get_running_loop()
        limit = loop.time() + LOOK_S

        def begin() -> None:
            away = sorted(set(others) - set(node.transport.connected))
            if away and loop.time() < limit:
                loop.call_later(AGAIN_S, begin)
                return
            try:
                if away:
                    at = node.identity.book[away[0]]
                    raise MemberNotReached(away[0], at, "it is not connected")
                group = node.create(name, members)
            except LithifyError as error:
                done(error)
                return
            except OSError as error:
                done(CreationUnknown(name, f"it could not be recorded ({error.strerror or error})"))
                return
            if not others:
                done(_reply({"group": name, "members": members}))
                return
            self._creating.add(group)
            _Creating(node, name, group, others, partial(created, group)).propose()

        def created(group: Group[Any], failure: LithifyError | None) -> None:
            self._creating.discard(group)
            done(failure or _reply({"group": name, "members": members}))

        begin()

    def _administer(
        self, group: Group[Any], operation: int, given: dict[str, Any], done: requests.Done
    ) -> None:
        if operation == ClientOperation.BACKUP:
            self._node.backups.ask(group, given, done)
        elif operation == ClientOperation.TRANSFER:
            self.handovers.begin(group, _given(given, "to", str), _with_value(done))
        elif operation == ClientOperation.COMPACTION:
            self._node.runs.ask(group, given, done)
        elif operation == ClientOperation.COMPACT:
            self._compact(group, given, done)
        else:
            done(_reply(self._do(group, operation)))

    def _compact(self, group: Group[Any], given: dict[str, Any], done: requests.Done) -> None:
        def begun(answer: requests.CommandResult | LithifyError) -> None:
            if given.get("rewrite") and not isinstance(answer, LithifyError):
                group.rewrite()
            done(answer)

        self._node.runs.begin(group, begun, waits=given.get("wait") is not False)

    def _do(self, group: Group[Any], operation: int) -> dict[str, Any]:
        """Operations that are done, or only started, at once."""
        if operation == ClientOperation.SNAPSHOT:
            group.take_snapshot()
        elif operation == ClientOperation.OVERVIEW:
            return group.overview()
        elif operation == ClientOperation.MEMBERS:
            seen, book = place_overview(group.status()), self._node.transport.book
            # The book has other nodes too, of other groups or of none.
            members = {name: at for name, at in book.items() if name in group.config.members}
            return {name: seen[name] for name in ("leader", "term", "members")} | {"book": members}
        else:
            raise InvalidInput(f"operation {operation} is not known")
        return {}

    def _who(self) -> dict[str, Any]:
        identity = self._node.identity
        own = identity.recognition.own
        return {"node": identity.node, "cluster": identity.cluster, "identity": own}

    def _place(self, given: dict[str, Any]) -> dict[str, Any]:
        """Key, members and identities of the group in the request, if it is here."""
        group = self._node.groups.get(_given(given, "group", str))
        identities = self._node.identity.recognition.identities
        return {} if group is None else {"group": origin(group, identities)}

    def _node_overview(self) -> dict[str, Any]:
        node = self._node
        return {
            **self._who(),
            "standing": str(node.identity.recognition.standing),
            "address": node.transport.book.get(node.identity.node, ""),
            "connected": node.transport.connected,
            "ailing": {group_of(key): member.reason for key, member in node.ailing.items()},
            "refused": node.transport.refused,
            "refused_by": node.transport.refused_by,
            **wal_overview(node.storage),
            "cluster_id": node.identity.recognition.cluster_id,
            "start": node.identity.recognition.starts.number,
            "groups": [group.overview() for _, group in sorted(node.groups.items())],
        }


class _Creating:
    """Makes the first member of a new group add the others, or end the group if that fails.

    It gives up if meanwhile the group is dropped, one of the members is removed, or another member
    leads. Then the client is refused, or told that the outcome is unknown if the group may exist:
    the client must not retry and create the group twice.
    """

    def __init__(
        self,
        node: RaftNode,
        name: str,
        group: Group[Any],
        others: list[str],
        done: Callable[[LithifyError | None], None],
    ) -> None:
        self._node = node
        self._name = name
        self._group = group
        self._others = others
        known = node.identity.recognition.known
        added = (MemberChange(Op.VOTER, other, known.get(other, "")) for other in others)
        self._change = ConfChange(tuple(added), Mode.JOINT)
        self._limit = asyncio.get_running_loop().time() + CHANGE_S
        self._done = done
        self._joined = False
        """Are the others learners?"""

    def propose(self) -> None:
        """Propose the change, unless the creation was overtaken."""
        group, name = self._group, self._name
        if self._node.groups.get(name) is not group:
            self._done(InvalidInput(f"group {name} was dropped while it was created"))
        elif self._joined and not group.status().config.members.issuperset(self._others):
            self._done(CreationUnknown(name, "some of its members were removed"))
        elif self._joined and not group.leading_term:
            self._done(CreationUnknown(name, "it got another leader"))
        else:
            group.propose_change(self._change, self._changed)
            self._node.mark(group)

    def _changed(self, result: requests.Result) -> None:
        if isinstance(result, requests.CommandResult):
            self._done(None)
        elif isinstance(result, Dropped | GroupAbsent):
            # It does not lead yet, or the others do not know the group; or the group has ended.
            self._joined = self._joined or (
                isinstance(result, Dropped) and result.reason is DropReason.LEARNER_FIRST
            )
            loop = asyncio.get_running_loop()
            if loop.time() < self._limit:
                loop.call_later(AGAIN_S, self.propose)
            elif self._node.groups.get(self._name) is self._group:
                # The group is empty: it took no commands yet.
                why = f"group {self._name} was not created within {CHANGE_S:g} s: {result}"
                self._group.propose_end(lambda _: self._done(InvalidInput(why)))
                self._node.mark(self._group)
            else:
                self._done(result)
        else:
            self._done(result)


@contextmanager
def _answered(done: requests.Done) -> Iterator[None]:
    """Answer with the error that the block raises."""
    try:
        yield
    except LithifyError as error:
        done(error)


def _send_replies(
    channel: Channel, name: str, numbers: list[int], result: requests.CommandResults
) -> None:
    index, replies = result
    # Small replies go together; one reply always fits into a frame.
    step = len(replies) if sum(map(len, replies)) <= REPLIES_BYTES_MAX else 1
    for at in range(0, len(replies), step):
        some = slice(at, at + step)
        channel.send(
            name, ClientResponses(numbers[some], OperationOutcome.DONE, index + at, replies[some])
        )


def _fits(batch: ClientRequests) -> bool:
    return max(map(len, batch.bodies)) <= COMMAND_BYTES_MAX


def _one(done: requests.RunDone, place: int) -> requests.Done:
    """The callback of one request of a run."""

    def ended(result: requests.Result) -> None:
        if isinstance(result, requests.CommandResult):
            done(slice(place, place + 1), requests.CommandResults(result.index, [result.reply]))
        else:
            done(slice(place, place + 1), result)

    return ended


def _with_index(done: requests.Done) -> requests.Done:
    """Answers with the index of the entry."""

    def ended(result: requests.Result) -> None:
        done(
            _reply({"index": result.index})
            if isinstance(result, requests.CommandResult)
            else result
        )

    return ended


def _with_value(done: requests.Done) -> Callable[[dict[str, Any] | LithifyError], None]:
    """Answers with the outcome of a transfer."""
    return lambda result: done(result if isinstance(result, LithifyError) else _reply(result))


def _reply(value: dict[str, Any]) -> requests.CommandResult:
    return requests.CommandResult(0, json.dumps(value).encode())


def _parse(body: bytes) -> dict[str, Any]:
    try:
        value = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"the body is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise InvalidInput("the body is not a JSON object")
    return value


def _given(given: dict[str, Any], name: str, kind: type[T]) -> T:
    """A value of the body; empty if it is missing."""
    value = given.get(name, kind())
    if not isinstance(value, kind):
        raise InvalidInput(f"{name} is {value!r}, must be a {kind.__name__}")
    return value


def _book(given: dict[str, Any]) -> dict[str, str]:
    """The addresses in a body."""
    book = _given(given, "book", dict).items()
    return {_checked(str(name)): str(parse_address(str(at))) for name, at in book}


def _checked(name: str) -> str:
    check_name(name)
    return name


def _check_known(node: RaftNode, members: list[str]) -> None:
    known = {node.identity.node, *node.identity.book}
    unknown = sorted(set(members) - known)
    if unknown:
        raise InvalidInput(f"the address of node {unknown[0]} is not known here")
