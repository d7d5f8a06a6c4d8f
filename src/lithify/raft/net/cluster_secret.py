"""The secret that the nodes and clients of a cluster share, and the proofs that an end has it.

    connecting end                                  accepting end
    Hello(version, cluster, node, to, book)    ->
                                               <-   Challenge(nonce, cluster, node)
    Proof(nonce, proof)                        ->
                                               <-   Proof(empty, proof), Welcome

A proof is an HMAC-SHA-256 with the secret over these fields, each with its length before it:

    "lithify cluster", side ("connecting" or "accepting"), version, cluster, node, to and book of
    the `Hello`, cluster and node of the `Challenge`, its nonce, the nonce of the connecting end

So the secret is never sent. Both ends draw a nonce of `NONCE_BYTES` for each connection, so a proof
is worth nothing on another one. The side is in it, so no end accepts a proof that it has made, and
the names are, so none that was made for another node. The connecting end proves first: a stranger
gets no proof to guess secrets with.

A proof says who has connected. It does not protect what is sent afterwards from a stranger on the
network between the nodes: that takes TLS. A secret has at least `SECRET_BYTES_MIN` bytes, because
a stranger on the network gets proofs to try secrets with. Pure.
"""

from __future__ import annotations

import hmac
import struct
from enum import StrEnum
from typing import TYPE_CHECKING

from lithify.errors import InvalidInput, ProtocolError

if TYPE_CHECKING:
    from lithify.raft.net.control_frames import Challenge, Hello

__all__ = ["NONCE_BYTES", "SECRET_BYTES_MIN", "ClusterSecret", "ClusterSecretRefused", "Side"]

SECRET_BYTES_MIN = 16
NONCE_BYTES = 32
_LENGTH = struct.Struct("<Q")
_PURPOSE = "lithify cluster"


class ClusterSecretRefused(ProtocolError):
    """One of two ends does not prove the cluster secret."""


class Side(StrEnum):
    """The end of a connection that makes a proof."""

    CONNECTING = "connecting"
    ACCEPTING = "accepting"


class ClusterSecret:
    """See the module. Its representation does not show it."""

    def __init__(self, key: bytes) -> None:
        if len(key) < SECRET_BYTES_MIN:
            limit = f"at least {SECRET_BYTES_MIN}"
            raise InvalidInput(f"the cluster secret has {len(key)} bytes, must have {limit}")
        self._key = key

    def proof(self, side: Side, hello: Hello, challenge: Challenge, nonce: bytes) -> bytes:
        """The proof of one end of a connection; `nonce` is that of the connecting end."""
        if not len(nonce) == len(challenge.nonce) == NONCE_BYTES:
            raise ProtocolError(f"a nonce of the greeting has not {NONCE_BYTES} bytes")
        of_hello = (str(hello.version), hello.cluster, hello.node, hello.to, hello.book)
        texts = (_PURPOSE, side, *of_hello, challenge.cluster, challenge.node)
        fields = (*(text.encode() for text in texts), challenge.nonce, nonce)
        message = b"".join(_LENGTH.pack(len(field)) + field for field in fields)
        return hmac.digest(self._key, message, "sha256")

    def accepts(
        self, proof: bytes, side: Side, hello: Hello, challenge: Challenge, nonce: bytes
    ) -> bool:
        """Is this the proof of that end? Compared in constant time."""
        return hmac.compare_digest(proof, self.proof(side, hello, challenge, nonce))
