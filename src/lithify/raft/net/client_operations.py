"""The operations of a node for clients, and their outcomes. Pure.

| operation | body | answer |
|---|---|---|
| propose | a command of the group's machine | the machine's reply, and the index |
| read | a query of the group's machine | the machine's reply; linearizable |
| watch | 1 length, a name, a command that has the machine send to that name | see below |
| other | JSON, an object | JSON, an object |

    create     {"members": ["n1", "n2", "n3"]}   a new group; the node that is asked is a member
    change     {"change": "+n4", "book": {"n4": "127.0.0.1:7004"}}   as `ConfChange.parse` says; the
               answer has `already` if the members were so before
    transfer   {"to": "n2"}                      answered when a member leads, or none in time
    compact    {"rewrite": true, "wait": true}   a leader also moves scattered entries to the head;
               the answer has the `request` of the run, which is queued; without `wait` the request
               is refused if the run would have to wait
    compaction {"ask": "status", "request": ID}  or plan, history (with `limit`), cancel; the rows
               that topics have, see `compaction/run_requests.py`
    backup     see `raft/backup/node_backups.py`; the answer to a read is bytes
    drop       {}                                answered when the group has ended, for good
    snapshot, members, overview   {}; an overview without a group is that of the node
    move       {"book": {"n2": "127.0.0.1:7009"}}    a member has another address
    question   {"question": "times", "given": {}}    of the process of another node, to that of this
               one; without a group (`raft/node/node_questions.py`)
    process    to the process that runs the node, which defines body and answer; without a group.
               `process read` is one that changes nothing, so it may be repeated
    who        {"group": "default"}   without a group: name, cluster and identity of the node; also
               key and members of the group in the body, if the node has it

A watch gets the answer of its command. Data that the machine sends to the name follows as `Event`
messages. A second answer ends the watch: not now, or other node. A connection has one watch, which
ends with it.

| outcome | meaning | what a client does |
|---|---|---|
| done | | |
| other node | another node leads, or can read what this one cannot: the body is `name address`, and
  perhaps why | asks there |
| not now | nothing happened: overloaded, no leader, being handed over | asks again, later |
| unknown | it may have happened or not: leadership was lost meanwhile | reports it |
| absent | this node has no such group | asks another, or gives up if all have said so |
| refused | it is impossible; the body says why | gives up |
| begun | a part of it is done and stays; the body says how to continue | gives up |
| no leader | as `not now`; of a change no step was done | retries, later |
| leader busy | as `no leader`, from the leader: another node could only name it | asks it again,
  later |
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from lithify.errors import InvalidInput, LithifyError
from lithify.exit_codes import CONFLICT, FAILED, NOT_FOUND, OUTCOME_UNKNOWN, UNREACHABLE

__all__ = [
    "Address",
    "ClientOperation",
    "GroupNotFound",
    "MayHaveHappened",
    "NoAnswer",
    "NoQuorum",
    "OperationOutcome",
    "OperationRefused",
    "PartlyDone",
    "encode_watch",
    "parse_address",
    "parse_watch",
]


class ClientOperation(IntEnum):
    """See the module."""

    PROPOSE = 1
    READ = 2
    CREATE = 3
    CHANGE = 4
    TRANSFER = 5
    SNAPSHOT = 6
    COMPACT = 7
    MEMBERS = 8
    OVERVIEW = 9
    WATCH = 10
    DROP = 11
    QUESTION = 12
    PROCESS = 13
    PROCESS_READ = 14
    WHO = 20
    MOVE = 21
    BACKUP = 22
    COMPACTION = 23


class OperationOutcome(IntEnum):
    """See the module."""

    DONE = 0
    OTHER_NODE = 1
    NOT_NOW = 2
    UNKNOWN = 3
    REFUSED = 4
    ABSENT = 5
    BEGUN = 6
    NO_LEADER = 7
    LEADER_BUSY = 8


class OperationRefused(LithifyError):
    """The node refuses the request for good; nothing has changed."""

    exit_code = CONFLICT


class PartlyDone(LithifyError):
    """A part of the request is done, and stays; the message says how to continue."""

    exit_code = FAILED


class GroupNotFound(OperationRefused):
    """None of the named nodes has the group."""

    exit_code = NOT_FOUND


class MayHaveHappened(LithifyError):
    """The outcome is unknown: the request took effect, or did not, or still may."""

    exit_code = OUTCOME_UNKNOWN


class NoAnswer(LithifyError):
    """No node that could serve the request was found in time; nothing was done."""

    exit_code = UNREACHABLE


class NoQuorum(NoAnswer):
    """The group has no quorum, and the node that was asked knows that; nothing was done."""


@dataclass(frozen=True, slots=True)
class Address:
    """The address of a node."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(text: str) -> Address:
    """`host:port`, an IPv6 address in brackets."""
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not _is_host(host) or not port.isdecimal() or int(port) > 65_535:
        raise InvalidInput(f"address {text!r} must be like 127.0.0.1:7001")
    return Address(host, int(port))


def _is_host(text: str) -> bool:
    """Can the operating system resolve it? For other texts it raises more than `OSError`."""
    try:
        return bool(text.encode("idna")) and text.isprintable()
    except UnicodeError:
        return False


def encode_watch(name: bytes, command: bytes) -> bytes:
    """The body of a watch: the name to send to, and the command that starts it."""
    return bytes((len(name),)) + name + command


def parse_watch(body: bytes) -> tuple[bytes, bytes]:
    """(name, command) of the body of a watch."""
    end = 1 + body[0] if body else 0
    if end <= 1 or end > len(body):
        raise InvalidInput(f"a watch of {len(body)} bytes has no name")
    return body[1:end], body[end:]
