"""Admits connections at the accepting end: asks for the cluster secret, if there is one.

1. A peer sends `Hello`. Without a secret it is admitted.
2. With a secret it gets a `Challenge` and must send a `Proof` (`cluster_secret.py`). Then it gets
   the own proof and is admitted.
3. A peer with a wrong proof is refused with a text that says so; the caller limits the time.

Each refused peer is logged once, by its host and the name it gives; of many, up to `LOGGED_MAX`.
The transport calls, in its event loop.
"""

from __future__ import annotations

from dataclasses import dataclass
from secrets import token_bytes
from typing import TYPE_CHECKING, Any

from lithify.errors import ProtocolError
from lithify.logger import get_logger
from lithify.raft.net.cluster_secret import NONCE_BYTES, ClusterSecret, ClusterSecretRefused, Side
from lithify.raft.net.control_frames import Challenge, Hello, Proof

if TYPE_CHECKING:
    from collections.abc import Callable

    from lithify.raft.net.channel import Channel

__all__ = ["Admission"]

LOGGED_MAX = 256

log = get_logger("lithify.raft")


@dataclass(frozen=True, slots=True)
class _Challenged:
    """A peer that has not proven the secret yet."""

    hello: Hello
    challenge: Challenge


class Admission:
    """See the module."""

    def __init__(self, secret: ClusterSecret | None, cluster: str, node: str) -> None:
        self._secret = secret
        self._cluster = cluster
        self._node = node
        self._challenged: dict[Channel, _Challenged] = {}
        self._logged: set[tuple[str, str]] = set()

    def receive(
        self,
        channel: Channel,
        messages: list[tuple[str, Any]],
        refusal: Callable[[Hello], str],
    ) -> Hello | None:
        """The greeting of a peer that is admitted; None if it has to prove the secret first.

        A peer that `refusal` refuses is returned at once: it is asked for nothing.
        """
        first = messages[0][1] if messages else None
        waiting = self._challenged.get(channel)
        if waiting is not None:
            if not isinstance(first, Proof):
                raise ProtocolError("the answer to the challenge is none")
            self._check(channel, waiting, first)
            return waiting.hello
        if not isinstance(first, Hello):
            raise ProtocolError("the first message is no greeting")
        if self._secret is None or refusal(first):
            return first
        if len(messages) > 1:
            raise ProtocolError("a message before the proof of the cluster secret")
        challenge = Challenge(token_bytes(NONCE_BYTES), self._cluster, self._node)
        self._challenged[channel] = _Challenged(first, challenge)
        channel.send("", challenge)
        return None

    def _check(self, channel: Channel, waiting: _Challenged, shown: Proof) -> None:
        """Send the own proof, or raise `ClusterSecretRefused`."""
        assert self._secret is not None
        given = (waiting.hello, waiting.challenge, shown.nonce)
        if not self._secret.accepts(shown.proof, Side.CONNECTING, *given):
            raise ClusterSecretRefused(f"node {self._node} has another cluster secret")
        del self._challenged[channel]
        channel.send("", Proof(b"", self._secret.proof(Side.ACCEPTING, *given)))

    def closed(self, channel: Channel) -> None:
        """A connection is closed: log it, if the peer has not proven the secret."""
        waiting = self._challenged.pop(channel, None)
        if waiting is None:
            return
        name = waiting.hello.node or "a client"
        peer = (channel.peer.rpartition(":")[0], name)
        if peer not in self._logged and len(self._logged) < LOGGED_MAX:
            self._logged.add(peer)
            reason = "it has not proven the cluster secret"
            log.warning("connection refused", peer=channel.peer, node=name, reason=reason)
