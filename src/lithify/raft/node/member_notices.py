"""Notices between nodes about members: who was removed, and which groups have ended.

1. If a group has no leader for long, its node asks all others whether it is still a member, and
   logs which other voters are not connected, whenever these change (`report_lonely`).
2. A node that knows better tells it (`MemberRemoved`), and the node leaves the group.
3. A node that drops an ended group notifies its other members at every `TELL_TICKS` until they
   confirm (`EndKnown`), and all nodes that ask.

`raft/group/removed_members.py` says which notices are believed. Called in the node's event loop.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from lithify.logger import get_logger
from lithify.raft.core import PeerChanged
from lithify.raft.group.removed_members import TELL_TICKS, EndKnown, MemberQuery, MemberRemoved
from lithify.raft.storage.file_names import group_of, key_of

if TYPE_CHECKING:
    from lithify.raft.group.group import Group
    from lithify.raft.node.node import RaftNode

    MemberNotice = MemberQuery | MemberRemoved | EndKnown

__all__ = ["MemberNotices"]

log = get_logger("lithify.raft")


class MemberNotices:
    """See the module."""

    def __init__(self, node: RaftNode) -> None:
        self._node = node
        self._missing: dict[str, list[str]] = {}
        """By group: the voters that were last logged as not connected."""

    def tick(self, tick: int) -> None:
        """Notify members of ended groups, at some ticks."""
        if tick % TELL_TICKS == 0:
            for key in self._node.identity.dropped:
                self.notify_ended(key)

    def receive(self, key: str, group: Group[Any] | None, message: MemberNotice) -> None:
        """Process a notice for a group, which may not be here."""
        node, own, sender = self._node, self._node.identity.node, message.sender
        if isinstance(message, EndKnown):
            self._end_known(key, sender)
        elif isinstance(message, MemberRemoved):
            with node.guarded():
                if group is not None and group.believes(message):
                    node.leave(group, ended=message.ended)
                if message.ended:
                    # Not after a failure: a node that confirms is not notified again.
                    node.transport.send(key, EndKnown(own, sender, 0))
                    self._end_known(key, sender)
        elif key in node.identity.dropped:
            node.transport.send(key, MemberRemoved(own, sender, 0, 0, ended=True))
        else:
            notice = None if group is None else group.removal_notice(sender)
            if notice is not None:
                node.transport.send(key, notice)
            elif group is not None:
                # It knows no leader, so it is awake.
                group.report(PeerChanged(sender))
                node.mark(group)

    def _end_known(self, key: str, peer: str) -> None:
        with suppress(OSError):
            # If the disk is full, the node is notified again after the next start.
            self._node.identity.end_known(key, peer)

    def notify_ended(self, key: str) -> None:
        """Notify members that may not know it that a group has ended."""
        identity = self._node.identity
        for peer in identity.dropped.get(key, ()):
            self._node.transport.send(key, MemberRemoved(identity.node, peer, 0, 0, ended=True))

    def report_lonely(self, group: Group[Any]) -> None:
        """A group has had no leader for long."""
        node, own = self._node, self._node.identity.node
        for peer in node.identity.book:
            query = MemberQuery(own, peer, group.term)
            node.transport.send(key_of(group.name), query)
        missing = sorted(group.config.electorate - {own, *node.transport.connected})
        if missing and self._missing.get(group.name) != missing:
            self._missing[group.name] = missing
            name, names = group_of(group.name), ", ".join(missing)
            log.warning("waiting for a quorum", group=name, not_connected=names)
