"""The peers of a node: the other nodes that its blob stores may replicate with.

    peers = BlobPeers([BlobPeer("node-2", "http://node-2:8080", token="…")])
    peers.url_of("node-2", "photos")                           # http://node-2:8080/blobs/photos
    peers.connect("http://node-2:8080/blobs/photos", "public/default")

The operator names them in the settings of the node. A replica of a store is named by an
administrator of its namespace, who is trusted with less: so a replica is always the store of a
peer, and a node sends its token, or any other request, to nobody else.

1. A replica is given as `NAME` (the store of the same name there), `NAME/STORE`, or the URL of the
   store, which must be that of a peer followed by /blobs/STORE, letter by letter.
2. The token of a peer is shown to this peer only. Redirects are not followed.
3. Each request says for which namespace it is made. A node refuses it for a store of another one:
   whoever administers one namespace cannot read the stores of others by the token of the node.
4. A replica that is in the list of a store and belongs to no peer is inactive: it is not asked.

Pure but for the connections it makes. Called by the node, by HTTP and by the replicator.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from lithify.blobs.definition import check_store_name
from lithify.blobs.errors import ReplicaNoPeer
from lithify.blobs.replication_http import HttpPeer
from lithify.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["BlobPeer", "BlobPeers"]

_PATH = "/blobs/"


@dataclass(frozen=True, slots=True)
class BlobPeer:
    """One other node."""

    name: str
    url: str
    """Without a slash at its end."""
    token: str = ""

    def __post_init__(self) -> None:
        check_store_name(self.name)  # The same characters, and none that a URL has.
        parts = urlsplit(self.url)
        more = parts.query or parts.fragment or parts.username or self.url.endswith("/")
        if parts.scheme not in ("http", "https") or not parts.hostname or more:
            raise InvalidInput(f"peer {self.name} has {self.url!r}, must be the URL of a node")


class BlobPeers:
    """See the module."""

    def __init__(self, peers: Iterable[BlobPeer] = ()) -> None:
        self._peers = {peer.name: peer for peer in peers}

    def url_of(self, replica: str, store: str) -> str:
        """The URL of a replica of a store, however it is named; raises `InvalidInput`."""
        name, _, there = replica.partition("/")
        if name in self._peers:
            check_store_name(there or store)
            return f"{self._peers[name].url}{_PATH}{there or store}"
        url = replica.rstrip("/")
        if self._peer_at(url) is None:
            known = ", ".join(f"{each.name} ({each.url})" for each in self._peers.values())
            raise InvalidInput(
                f"replica {replica!r} must be a store of a peer that the setting blob_peers of the "
                f"node names: {known or 'it names none'}"
            )
        return url

    def knows(self, url: str) -> bool:
        """Does the URL belong to a store of a peer?"""
        return self._peer_at(url) is not None

    def connect(self, url: str, namespace: str) -> HttpPeer:
        """A replica of a store of this namespace, to be asked; raises `ReplicaNoPeer`."""
        peer = self._peer_at(url)
        if peer is None:
            raise ReplicaNoPeer(url)
        return HttpPeer(url, peer.token, namespace)

    def _peer_at(self, url: str) -> BlobPeer | None:
        base, path, store = url.rpartition(_PATH)
        for peer in self._peers.values():
            if path and peer.url == base:
                try:
                    check_store_name(store)
                except InvalidInput:
                    return None
                return peer
        return None
