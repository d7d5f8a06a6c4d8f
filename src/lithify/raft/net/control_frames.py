"""The messages of a connection other than Raft's own. Values; `wire_format.py` defines their bytes.

The connecting end sends `Hello` and gets `Welcome`. In a cluster with a secret it gets `Challenge`
first, and both ends send a `Proof` (`cluster_secret.py`). A client then sends `ClientRequest`, gets
one `ClientResponse` to each, and `ClientEvent` while it watches. If a node connects, and the other
one has version `INTRODUCES`, both send an `Introduction`, the connecting node first. Nodes of
earlier versions neither send nor get one. Nodes that both have version `SHOWS_STARTS` send
`Credentials` instead, and again when these change.

Clients send many requests of one kind in a row. A node reads such a run in one step, as columns
(`ClientRequests`), and writes the answers the same way (`ClientResponses`): one message object per
request would cost more than its content.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

__all__ = [
    "HEARS_COMMITS",
    "INTRODUCES",
    "SHOWS_STARTS",
    "WATCHES_NODES",
    "WIRE_VERSION",
    "Challenge",
    "ClientEvent",
    "ClientRequest",
    "ClientRequests",
    "ClientResponse",
    "ClientResponses",
    "Credentials",
    "Hello",
    "Introduction",
    "NodeAlive",
    "Proof",
    "Welcome",
]

WIRE_VERSION = 1
"""The version of the whole protocol, sent in `Hello`."""
INTRODUCES = 2
"""Sent in `Welcome`: nodes show their identities."""
SHOWS_STARTS = 3
"""Nodes also show their starts and the cluster's id."""
HEARS_COMMITS = 4
"""A leader sends `Commit`."""
WATCHES_NODES = 5
"""Nodes send `NodeAlive`. Only those that do get messages about sleep."""


@dataclass(frozen=True, slots=True)
class Hello:
    """The first message of the connecting end."""

    version: int
    cluster: str
    node: str
    """The name of the node.

    Empty for a client, which then sends `ClientRequest` and gets `ClientResponse`.
    """
    to: str
    """The name of the node to be reached; empty for any."""
    book: str
    """The addresses that the sender knows, as JSON: node to host:port."""


@dataclass(frozen=True, slots=True)
class Welcome:
    """The answer to `Hello`; with a refusal it is the last message of the connection."""

    version: int
    node: str
    refusal: str
    book: str


@dataclass(frozen=True, slots=True)
class Challenge:
    """The answer to `Hello` of a node that requires the cluster secret."""

    nonce: bytes
    cluster: str
    node: str


@dataclass(frozen=True, slots=True)
class Proof:
    """The proof of one end that it has the cluster secret."""

    nonce: bytes
    """Drawn by the connecting end; empty from the accepting one, which has sent a `Challenge`."""
    proof: bytes


@dataclass(frozen=True, slots=True)
class Introduction:
    """The identity of a node's data directory."""

    version: int
    identity: str
    refusal: str
    """In the answer: why the other identity is not accepted; then it is the last message."""
    known: str
    """The known identities of other nodes, as JSON."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """The identity of a node's data directory, its starts, and its cluster."""

    version: int
    identity: str
    refusal: str
    """As in `Introduction`."""
    known: str
    cluster_id: str
    starts: str
    """As JSON: `recognition.Starts`."""
    met_starts: str
    """As JSON: the newest start of each other node, including the receiver."""


@dataclass(frozen=True, slots=True)
class NodeAlive:
    """Sent by a node at each tick."""

    epoch: int
    """Drawn by its process."""


class ClientRequest(NamedTuple):
    """A request of a client; `client_operations.py` lists the operations.

    A tuple, like its answer, because one is created per command: half the time of a dataclass.
    """

    number: int
    """Chosen by the client, repeated in the answer."""
    operation: int
    body: bytes


class ClientResponse(NamedTuple):
    """The outcome of an `ClientRequest`."""

    number: int
    outcome: int
    log_index: int
    """The index of the command in the log; 0 for all other operations."""
    body: bytes


class ClientEvent(NamedTuple):
    """Data that the group's machine sends to a client that watches."""

    number: int
    """That of the `ClientRequest` that started the watch."""
    body: bytes


class ClientRequests(NamedTuple):
    """Consecutive requests of one operation, as a node reads them."""

    operation: int
    numbers: list[int]
    bodies: list[bytes]


class ClientResponses(NamedTuple):
    """Outcomes of consecutive commands of the log, as a node writes them."""

    numbers: list[int]
    outcome: int
    log_index: int
    """Of the first; the others follow."""
    bodies: list[bytes]
