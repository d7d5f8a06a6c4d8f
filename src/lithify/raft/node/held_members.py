"""Members that do not begin before the process of the node says so.

    RaftNodeSettings(..., holds=lambda group: group.startswith("zone-"))
    release(node, {"zone-5-0": "its replica here is given up"})

A process that has to find out first whether the logs of some groups still count has their members
held when the node opens. They replay nothing, hear nothing and answer nothing: other nodes see them
as down. `release` begins all of them. Those with a reason are recorded as stopped, before they
begin: they take no part until they are removed from their groups, which deletes their files.

A node without an address holds nothing: there is no other node to find out from.

Called in the node's event loop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lithify.raft.storage.file_names import group_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lithify.raft.core.messages import RaftMessage
    from lithify.raft.node.node import RaftNode
    from lithify.raft.pending_work import Job
    from lithify.raft.repair.messages import EntriesFound

__all__ = ["HeldMember", "release"]


class HeldMember:
    """One member that is held; like `BlockedMembers`, without anything to repair."""

    reason = "held until the process releases it"
    is_repaired = False

    def tick(self) -> None:
        """Time changes nothing."""

    def work(self, _: list[str]) -> tuple[list[RaftMessage], Job | None]:
        """Nothing is to be done."""
        return [], None

    def receive(self, _: EntriesFound) -> None:
        """It has asked for nothing."""

    def done(self, _: Job, __: object) -> None:
        """It has had no job."""


def release(node: RaftNode, given_up: Mapping[str, str]) -> None:
    """Begin all members that are held; those with a reason, by group, are stopped for good."""
    held = [key for key, each in node.ailing.items() if isinstance(each, HeldMember)]
    reasons = {key: given_up.get(group_of(key), "") for key in held}
    stopped = {key: reason for key, reason in reasons.items() if reason}
    if stopped:
        node.identity.stopped |= stopped
        node.identity.save()
    for key in held:
        node.begin_or_repair(key)
        group = node.groups.get(group_of(key))
        if group is not None:
            if group.stopped is None and group.config.electorate == {node.identity.node}:
                group.campaign()
            node.mark(group)
