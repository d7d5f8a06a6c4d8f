"""How a node learns the id of its cluster.

The first groups of all clusters have the same name and key. So a node that was given an address of
another cluster could be mistaken for a member there. Each cluster therefore has an id, 16 random
bytes, which nodes show when they connect (`raft/net/peer_recognition.py`).

1. The id is the first note in the log of the group `default`: the first leader writes it into its
   first entry. It is committed once, so all members get the same id.
2. A log of an earlier version has no id. Its leader writes one when it has applied everything
   before, and only if it sees a majority of the members and none of them shows an id.
3. A node takes the id when it applies that entry, or from a leader that it follows. It shows the id
   on all connections as soon as it has it. So it shows it before it sends a snapshot that no longer
   contains the entry.

Called in the node's event loop.
"""

from __future__ import annotations

from secrets import token_hex
from typing import TYPE_CHECKING, Any

from lithify.logger import get_logger
from lithify.raft.core.configuration import IDENTITY
from lithify.raft.core.quorum import has_quorum
from lithify.raft.storage.file_names import is_drawn, key_of

if TYPE_CHECKING:
    from lithify.raft.group.group import Group
    from lithify.raft.node.node import RaftNode

__all__ = ["ClusterIdDiscovery", "new_cluster_id"]

log = get_logger("lithify.raft")


def new_cluster_id() -> str:
    """A random cluster id."""
    return token_hex(16)


class ClusterIdDiscovery:
    """See the module."""

    def __init__(self, node: RaftNode) -> None:
        self._node = node
        self._noted_term = 0
        """The term in which this node has written an id."""

    def id_for_first_entry(self) -> bytes:
        """The id for the first entry of the first group."""
        return (self._node.identity.recognition.cluster_id or new_cluster_id()).encode()

    def check_group(self, group: Group[Any]) -> None:
        """Check whether the id is known, after an event in a group."""
        node = self._node
        if node.identity.recognition.cluster_id:
            return
        found = node.transport.cluster_ids.get(group.leader, "")
        if not is_drawn(key_of(group.name)):
            found = group.note.decode(errors="replace") or found
            if not found and group.may_note and group.term != self._noted_term:
                found = self._find_or_propose_id(group)
        if IDENTITY.fullmatch(found):
            if node.settings.listen is not None:
                log.info("cluster known", cluster_id=found)
            node.identity.join_cluster(found)
            node.transport.resend_credentials()

    def _find_or_propose_id(self, group: Group[Any]) -> str:
        """The id that other members show; if there is none, write one into the log."""
        node = self._node
        own, ids = node.identity.node, node.transport.cluster_ids
        shown = {name: ids[name] for name in group.config.members - {own} if name in ids}
        found = max(shown.values(), default="")
        if not found and has_quorum(group.config, shown.keys() | {own}):
            self._noted_term = group.term
            group.propose_note(self.id_for_first_entry())
            node.mark(group)
        return found
