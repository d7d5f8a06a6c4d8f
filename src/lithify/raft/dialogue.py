"""What is said over a connection besides Raft's own messages. Values; `wire.py` has their bytes.

Who connects says `Hello` and is told `Welcome`. If it is a client, it sends `Ask` and gets an
`Answer` to each, and `Event` while it watches. If it is a node, and the other one has the version
`INTRODUCES`, both send an `Introduction`, who connects first. A node of an earlier version sends
and gets none. Nodes that both have the version `SHOWS_STARTS` send `Credentials` instead, and once
more when there is something new in them.

Clients ask for the same thing many times in a row. A node reads such a run in one step, as columns
(`Asks`), and so are its answers written (`Answers`): a message of its own for each would cost more
than what it says.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

__all__ = [
    "INTRODUCES",
    "SHOWS_STARTS",
    "WIRE_VERSION",
    "Answer",
    "Answers",
    "Ask",
    "Asks",
    "Credentials",
    "Event",
    "Hello",
    "Introduction",
    "Welcome",
]

WIRE_VERSION = 1
"""Of all that is said, told in `Hello`."""
INTRODUCES = 2
"""Told in `Welcome`: nodes show each other their identities."""
SHOWS_STARTS = 3
"""The same, and their starts and the cluster's id."""


@dataclass(frozen=True, slots=True)
class Hello:
    """The first message of who connects."""

    version: int
    cluster: str
    node: str
    """Who it is; empty for a client, which then sends `Ask` and gets `Answer`."""
    to: str
    """Whom it wants to reach; empty if anybody will do."""
    book: str
    """The addresses it knows, as JSON: node to host:port."""


@dataclass(frozen=True, slots=True)
class Welcome:
    """The answer to `Hello`; with a refusal, the last message of this connection."""

    version: int
    node: str
    refusal: str
    book: str


@dataclass(frozen=True, slots=True)
class Introduction:
    """Which data directory a node has."""

    version: int
    identity: str
    refusal: str
    """In the answer: why the other identity is not accepted; the last message then."""
    known: str
    """The identities of other nodes that it knows, as JSON."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """Which data directory a node has, which start of it this is, and of which cluster it is."""

    version: int
    identity: str
    refusal: str
    """As in `Introduction`."""
    known: str
    cluster_id: str
    starts: str
    """As JSON: `recognition.Starts`."""
    met_starts: str
    """As JSON: the newest start of each other node, also of the receiver."""


class Ask(NamedTuple):
    """A client wants something; see `operations.py` for what there is.

    Like its answer a tuple, because one is made for each command: half the time of a dataclass.
    """

    number: int
    """The client's own, which comes back in the answer."""
    operation: int
    body: bytes


class Answer(NamedTuple):
    """What came of an `Ask`."""

    number: int
    outcome: int
    log_index: int
    """Where the command stands in the log; 0 for everything else."""
    body: bytes


class Event(NamedTuple):
    """The group's machine sends something to a client that watches."""

    number: int
    """Of the `Ask` by which it does."""
    body: bytes


class Asks(NamedTuple):
    """Requests for the same thing that came one after the other, as a node reads them."""

    operation: int
    numbers: list[int]
    bodies: list[bytes]


class Answers(NamedTuple):
    """What came of commands that follow each other in the log, as a node writes it."""

    numbers: list[int]
    outcome: int
    log_index: int
    """Of the first; the others follow it."""
    bodies: list[bytes]
