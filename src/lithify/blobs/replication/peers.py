"""The peers of a node: the other nodes that its blob stores may replicate with.

    peers = BlobPeers([BlobPeer("node-2", "http://node-2:8080", token="…")])
    peers.url_of("node-2", "photos")                           # http://node-2:8080/blobs/photos
    peers.connect("http://node-2:8080/blobs/photos", "public/default")

The operator names the peers in the settings of the node. An administrator of a namespace, who has
fewer rights, names the replicas of a store. Therefore a replica must be the store of a peer, and a
node sends its token, and every request, to peers only.

1. A replica is given as `NAME` (the store of the same name there), `NAME/STORE`, or the URL of the
   store: exactly the URL of a peer followed by /blobs/STORE.
2. The token of a peer is sent to this peer only. Redirects are not followed.
3. Each request names its namespace. A node refuses it for a store of another one, so the
   administrator of one namespace cannot use the token of the node to read the stores of others.
4. A replica in the list of a store that belongs to no peer is inactive: it receives no requests.

Pure except for the connections. Called by the node, by HTTP and by the replicator.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from lithify.blobs.errors import ReplicaNoPeer
from lithify.blobs.replication.http_peer import HttpPeer
from lithify.errors import InvalidInput
from lithify.names import check_store_name

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["BlobPeer", "BlobPeers"]

_PATH = "/blobs/"


@dataclass(frozen=True, slots=True)
class BlobPeer:
    """Another node."""

    name: str
    url: str
    """Without a trailing slash."""
    token: str = ""

    def __post_init__(self) -> None:
        check_store_name(self.name)  # The same characters, and none that are special in a URL.
        parts = urlsplit(self.url)
        more = parts.query or parts.fragment or parts.username or self.url.endswith("/")
        if parts.scheme not in ("http", "https") or not parts.hostname or more:
            raise InvalidInput(f"peer {self.name} has {self.url!r}, must be the URL of a node")


class BlobPeers:
    """See the module."""

    def __init__(self, peers: Iterable[BlobPeer] = ()) -> None:
        self._peers = {peer.name: peer for peer in peers}

    def url_of(self, replica: str, store: str) -> str:
        """The URL of a replica of a store, given in any form; raises `InvalidInput`."""
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
        """Whether the URL belongs to a store of a peer."""
        return self._peer_at(url) is not None

    def connect(self, url: str, namespace: str) -> HttpPeer:
        """A client for a replica of a store of this namespace; raises `ReplicaNoPeer`."""
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
