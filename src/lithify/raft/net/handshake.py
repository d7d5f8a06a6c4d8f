"""The start of a connection, at the connecting end: what to send and which answers to expect.

    Hello         ->
                  <-  Challenge         if the other end requires the cluster secret
    Proof         ->                    (`cluster_secret.py`)
                  <-  Proof
                  <-  Welcome
    Introduction  ->                    between nodes, if `Welcome` says that it is understood
                  <-  Introduction      or `Credentials`, both, if both know them

Called by nodes and clients.
"""

from __future__ import annotations

import asyncio
import json
from secrets import token_bytes
from typing import TYPE_CHECKING, Any

from lithify.errors import InvalidInput, ProtocolError
from lithify.raft.core.configuration import check_identity, check_name
from lithify.raft.net.cluster_secret import NONCE_BYTES, ClusterSecretRefused, Side
from lithify.raft.net.control_frames import (
    Challenge,
    Credentials,
    Hello,
    Introduction,
    Proof,
    Welcome,
)
from lithify.raft.net.peer_recognition import MARKS_MAX, KnownStart, Starts

if TYPE_CHECKING:
    import ssl

    from lithify.raft.net.channel import Channel
    from lithify.raft.net.client_operations import Address
    from lithify.raft.net.cluster_secret import ClusterSecret

__all__ = [
    "Greeting",
    "check_certificate",
    "credentials_in",
    "credentials_of",
    "met_in",
    "starts_in",
]


class Greeting:
    """The greeting of one connection, until the other end answers with `Welcome`."""

    def __init__(self, hello: Hello, secret: ClusterSecret | None) -> None:
        """With a secret, only a node that proves it is accepted."""
        self._hello = hello
        self._secret = secret
        self._challenge: Challenge | None = None
        self._nonce = b""
        self._proven = False

    async def connect(
        self, address: Address, channel: Channel, context: ssl.SSLContext | None
    ) -> None:
        """Connect a channel and send `Hello`."""
        loop = asyncio.get_running_loop()
        await loop.create_connection(lambda: channel, address.host, address.port, ssl=context)
        channel.send("", self._hello)

    def receive(self, channel: Channel, messages: list[tuple[str, Any]]) -> Welcome | None:
        """The welcome of the wanted node; None until it has come.

        `ClusterSecretRefused` if the two ends do not have the same secret.
        """
        for place, (_, message) in enumerate(messages):
            if isinstance(message, Challenge) and self._challenge is None:
                channel.send("", self._answer(message))
            elif isinstance(message, Proof) and self._challenge is not None and not self._proven:
                self._check(message, self._challenge)
            elif isinstance(message, Welcome) and place == len(messages) - 1:
                self._check_welcome(channel, message)
                return message
            else:
                raise ProtocolError("the answer to the greeting is none")
        return None

    def _answer(self, challenge: Challenge) -> Proof:
        if self._secret is None:
            what = f"node {challenge.node} requires the cluster secret, and none is given here"
            raise ClusterSecretRefused(what)
        self._check_name(challenge.node)
        self._challenge, self._nonce = challenge, token_bytes(NONCE_BYTES)
        proof = self._secret.proof(Side.CONNECTING, self._hello, challenge, self._nonce)
        return Proof(self._nonce, proof)

    def _check(self, shown: Proof, challenge: Challenge) -> None:
        assert self._secret is not None
        given = (self._hello, challenge, self._nonce)
        if not self._secret.accepts(shown.proof, Side.ACCEPTING, *given):
            raise ClusterSecretRefused(f"node {challenge.node} proves another cluster secret")
        self._proven = True

    def _check_welcome(self, channel: Channel, welcome: Welcome) -> None:
        if welcome.refusal:
            # Everything else is refused before the challenge.
            refused = ProtocolError if self._challenge is None else ClusterSecretRefused
            raise refused(welcome.refusal)
        if self._secret is not None and not self._proven:
            what = f"node {welcome.node} does not prove the cluster secret: it has none"
            raise ClusterSecretRefused(what)
        self._check_name(welcome.node)
        check_certificate(channel, welcome.node)

    def _check_name(self, node: str) -> None:
        wanted = self._hello.to if self._challenge is None else self._challenge.node
        if wanted not in ("", node):
            raise ProtocolError(f"is node {node}, not {wanted}")


def check_certificate(channel: Channel, node: str) -> None:
    """Raise unless the peer's certificate has its name, or there is no TLS."""
    names = channel.certificate_names
    if names is not None and node not in names:
        raise ProtocolError(f"says it is node {node}, but its certificate is for {sorted(names)}")


def credentials_in(messages: list[tuple[str, Any]]) -> Credentials:
    """The answer to an introduction; raises if there is none."""
    found = messages[0][1] if messages else None
    if not isinstance(found, Introduction | Credentials) or len(messages) > 1:
        raise ProtocolError("the answer to the introduction is none")
    return credentials_of(found)


def credentials_of(shown: Introduction | Credentials) -> Credentials:
    """What a node shows; nodes of earlier versions show less."""
    if isinstance(shown, Credentials):
        return shown
    return Credentials(shown.version, shown.identity, shown.refusal, shown.known, "", "[]", "{}")


def starts_in(shown: Credentials) -> Starts:
    """The starts that a node shows."""
    try:
        value = json.loads(shown.starts)
        if not value:
            return Starts()
        number, marks = value
        return Starts(int(number), tuple(map(str, marks[:MARKS_MAX])))
    except (ValueError, TypeError, RecursionError) as error:
        raise ProtocolError(f"the starts of a node cannot be read: {error}") from error


def met_in(shown: Credentials) -> dict[str, KnownStart]:
    """The starts of other nodes that a node has recorded."""
    try:
        found = json.loads(shown.met_starts).items()
        met = {
            str(name): KnownStart(str(each[0]), int(each[1]), str(each[2])) for name, each in found
        }
        for name, each in met.items():
            check_name(name)
            check_identity(each.identity)
    except (
        ValueError,
        TypeError,
        LookupError,
        AttributeError,
        RecursionError,
        InvalidInput,
    ) as error:
        raise ProtocolError(f"the starts of nodes cannot be read: {error}") from error
    return met
