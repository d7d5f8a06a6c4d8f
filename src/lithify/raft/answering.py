"""A node's answers to its clients: what they ask for is done by the groups.

A client that has `ASKED_MAX` requests or `ASKED_BYTES_MAX` under way is not read from until that is
better, nor is one that does not take its answers. So memory is bounded by the number of clients.

Errors become outcomes (`operations.py`): a request that was not taken is `elsewhere`, with the
leader's address, or `not now`; one whose fate nobody knows is `unknown`; the rest is refused.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from lithify.errors import InvalidInput, LithifyError
from lithify.raft import requests
from lithify.raft.core import ConfChange, Dropped, DropReason
from lithify.raft.errors import GroupAbsent, OutcomeUnknown
from lithify.raft.operations import Operation, Outcome, parse_address
from lithify.raft.wire import Answer

if TYPE_CHECKING:
    from lithify.raft.channel import Channel
    from lithify.raft.group import Group
    from lithify.raft.node import RaftNode
    from lithify.raft.wire import Ask

__all__ = ["Answering"]

T = TypeVar("T")

ASKED_MAX = 4096
ASKED_BYTES_MAX = 32 * 2**20
COMMAND_BYTES_MAX = 16 * 2**20
AGAIN_S = 0.02


@dataclass(slots=True)
class _Asked:
    """What a client has under way."""

    requests: int = 0
    size_bytes: int = 0
    waits: bool = False

    @property
    def is_much(self) -> bool:
        return self.requests >= ASKED_MAX or self.size_bytes >= ASKED_BYTES_MAX


class Answering:
    """See the module."""

    def __init__(self, node: RaftNode) -> None:
        self._node = node
        self._clients: dict[Channel, _Asked] = {}

    def forget(self, channel: Channel) -> None:
        """A client is gone."""
        self._clients.pop(channel, None)

    def ask(self, channel: Channel, name: str, ask: Ask) -> None:
        """Do what a client wants, and answer when it is done."""
        client = self._clients.setdefault(channel, _Asked())
        size = len(ask.body)
        client.requests += 1
        client.size_bytes += size

        def done(result: requests.Result) -> None:
            outcome, index, body = self._outcome(result)
            channel.send(name, Answer(ask.number, outcome, index, body))
            client.requests -= 1
            client.size_bytes -= size
            if client.waits and not client.is_much:
                client.waits = False
                channel.read_on(wanted=True)

        try:
            self._begin(name, ask, done)
        except LithifyError as error:
            done(error)
        if client.is_much and not client.waits:
            client.waits = True
            channel.read_on(wanted=False)

    def _begin(self, name: str, ask: Ask, done: requests.Done) -> None:
        if len(ask.body) > COMMAND_BYTES_MAX:
            what = f"a request of {len(ask.body)} bytes"
            raise InvalidInput(f"{what} is larger than the limit {COMMAND_BYTES_MAX}")
        group = self._node.groups.get(name)
        if ask.operation == Operation.CREATE:
            self._create(name, _parse(ask.body), done)
        elif ask.operation == Operation.OVERVIEW and not name:
            done(_reply(self._node_overview()))
        elif group is None:
            raise GroupAbsent(name, self._node.identity.node)
        else:
            if ask.operation == Operation.PROPOSE:
                group.propose(ask.body, done)
            elif ask.operation == Operation.READ:
                group.read(ask.body, done)
            elif ask.operation == Operation.CHANGE:
                self._change(group, _parse(ask.body), done)
            else:
                done(_reply(self._do(group, ask.operation, _parse(ask.body))))
            self._node.mark(group)

    def _outcome(self, result: requests.Result) -> tuple[Outcome, int, bytes]:
        if isinstance(result, requests.Answer):
            return Outcome.DONE, result.index, result.reply
        outcome, text = Outcome.REFUSED, str(result)
        if isinstance(result, Dropped):
            outcome = Outcome.NOT_NOW
            at = self._node.identity.book.get(result.leader)
            if result.reason is DropReason.NOT_LEADER and at is not None:
                outcome, text = Outcome.ELSEWHERE, f"{result.leader} {at}"
        elif isinstance(result, OutcomeUnknown):
            outcome = Outcome.UNKNOWN
        elif isinstance(result, GroupAbsent):
            outcome = Outcome.ABSENT
        return outcome, 0, text.encode()

    # --- the operations that are not the machine's -------------------------------------------

    def _create(self, name: str, given: dict[str, Any], done: requests.Done) -> None:
        node = self._node
        members = [str(member) for member in _given(given, "members", list)]
        _check_known(node, members)
        group = node.create(name, members)
        others = sorted(set(members) - {node.identity.node})
        if not others:
            done(_reply({"group": name, "members": members}))
            return
        change = ConfChange.parse("joint:" + ",".join(f"+{member}" for member in others))

        def changed(result: requests.Result) -> None:
            if isinstance(result, Dropped):
                # It does not lead yet: its own vote has to be durable first.
                asyncio.get_running_loop().call_later(AGAIN_S, propose)
            elif isinstance(result, requests.Answer):
                done(_reply({"group": name, "members": members}))
            else:
                done(result)

        def propose() -> None:
            group.propose_change(change, changed)
            node.mark(group)

        propose()

    def _change(self, group: Group[Any], given: dict[str, Any], done: requests.Done) -> None:
        change = ConfChange.parse(_given(given, "change", str))
        book = _given(given, "book", dict).items()
        self._node.transport.learn({name: str(parse_address(str(at))) for name, at in book})
        _check_known(self._node, [each.node for each in change.changes if each.op != "-"])

        def changed(result: requests.Result) -> None:
            done(_reply({"index": result.index}) if isinstance(result, requests.Answer) else result)

        group.propose_change(change, changed)

    def _do(self, group: Group[Any], operation: int, given: dict[str, Any]) -> dict[str, Any]:
        """What is done at once, or only begun."""
        if operation == Operation.TRANSFER:
            group.transfer(_given(given, "to", str))
        elif operation == Operation.SNAPSHOT:
            group.take_snapshot()
        elif operation == Operation.COMPACT:
            group.compact()
            if given.get("rewrite"):
                group.rewrite()
        elif operation == Operation.OVERVIEW:
            return group.overview()
        elif operation == Operation.MEMBERS:
            seen, identity = group.overview(), self._node.identity
            book = identity.book | {identity.node: str(self._node.transport.address)}
            return {name: seen[name] for name in ("leader", "term", "members")} | {"book": book}
        else:
            raise InvalidInput(f"operation {operation} is not known")
        return {}

    def _node_overview(self) -> dict[str, Any]:
        node = self._node
        return {
            "node": node.identity.node,
            "cluster": node.identity.cluster,
            "address": str(node.transport.address),
            "connected": node.transport.connected,
            "groups": [group.overview() for _, group in sorted(node.groups.items())],
        }


def _reply(value: dict[str, Any]) -> requests.Answer:
    return requests.Answer(0, json.dumps(value).encode())


def _parse(body: bytes) -> dict[str, Any]:
    try:
        value = json.loads(body)
    except ValueError as error:
        raise InvalidInput(f"the body is no JSON: {error}") from error
    if not isinstance(value, dict):
        raise InvalidInput("the body is no JSON object")
    return value


def _given(given: dict[str, Any], name: str, kind: type[T]) -> T:
    """A value of the body; empty if it is not there."""
    value = given.get(name, kind())
    if not isinstance(value, kind):
        raise InvalidInput(f"{name} is {value!r}, must be a {kind.__name__}")
    return value


def _check_known(node: RaftNode, members: list[str]) -> None:
    known = {node.identity.node, *node.identity.book}
    unknown = sorted(set(members) - known)
    if unknown:
        raise InvalidInput(f"nobody here knows where node {unknown[0]} is reached")
