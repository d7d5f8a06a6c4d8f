"""The peers that an operator has named, when a node starts that has a cluster already.

A node needs `--peer` at its first start only, and later ones usually repeat it: so a named peer may
have left the cluster meanwhile. It may also never have been in it, if the directory or the address
is a wrong one. Then the operator believes that the node is a member of the peer's cluster, and it
serves clients as a node of its own.

1. A named peer that is no member of the cluster is logged.
2. The node waits until it has reached such a peer or has failed to, for `REACH_S` at most. If the
   peer shows that it belongs to another cluster, the node does not start.

A peer that is reached later is refused by the transport: log, status and health name it.

Called in the event loop of the Raft node.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from lithify.errors import LithifyError
from lithify.exit_codes import CONFLICT
from lithify.logger import get_logger

if TYPE_CHECKING:
    from lithify.raft.node.node import RaftNode

__all__ = ["PeerOfAnotherCluster", "check_named_peers"]

REACH_S = 3.0
CHECK_S = 0.02

log = get_logger("lithify.node")


class PeerOfAnotherCluster(LithifyError):
    """A peer that was named belongs to another cluster than the data directory."""

    exit_code = CONFLICT

    def __init__(self, peer: str, address: str, theirs: str, own: str, members: list[str]) -> None:
        self.peer = peer
        self.cluster_id = theirs
        what = f"peer {peer} at {address} belongs to cluster {theirs}"
        here = f"this data directory belongs to cluster {own} of {', '.join(members)}"
        super().__init__(
            f"{what}, and {here}. To join the peer's cluster, start with a new data directory and "
            "--join; to stay in this one, do not name the peer"
        )


async def check_named_peers(node: RaftNode, group: str) -> None:
    """Raise `PeerOfAnotherCluster`; see the module."""
    own, member = node.identity.recognition.cluster_id, node.groups.get(group)
    if not own or member is None:
        # It has no cluster yet.
        return
    members = sorted(member.config.members)
    others = sorted(node.settings.peers.keys() - set(members))
    if not others:
        return
    names = ", ".join(others)
    log.warning("named peers are no members", peers=names, members=", ".join(members))
    transport = node.transport
    limit_s = asyncio.get_running_loop().time() + REACH_S
    while not all(map(transport.has_tried, others)):
        if asyncio.get_running_loop().time() > limit_s:
            break
        await asyncio.sleep(CHECK_S)
    for name in others:
        if name in transport.foreign:
            at = node.settings.peers[name]
            raise PeerOfAnotherCluster(name, at, transport.foreign[name], own, members)
