"""Which groups of a node have no quorum, as far as the node knows.

A group has lost its quorum if for `LOST_S` this node has known no leader, and was connected with
too few of the voters to elect one. A request to it would only be answered at the time limit. A
shorter loss ends no request: after a restart of the leader, nodes connect again within two seconds.

Voters that are connected and silent are not noticed here; requests to them end at the time limit.

The node calls `check` at every tick, in its event loop.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from lithify.raft.core.quorum import has_quorum

if TYPE_CHECKING:
    from lithify.raft.group.group import Group
    from lithify.raft.node.node import RaftNode

__all__ = ["QuorumWatch"]

LOST_S = 3.0


class QuorumWatch:
    """See the module."""

    def __init__(self, node: RaftNode) -> None:
        self._node = node
        self._since_s: dict[str, float] = {}
        """By group: since when it has had no quorum."""

    def check(self) -> list[str]:
        """Check all groups; returns those that have lost their quorum."""
        now_s = asyncio.get_running_loop().time()
        self._since_s = {
            name: self._since_s.get(name, now_s)
            for name, group in self._node.groups.items()
            if not self._has_quorum(group)
        }
        return [name for name, since_s in self._since_s.items() if now_s - since_s >= LOST_S]

    def why_lost(self, name: str) -> str:
        """Why a group has no quorum, with the voters that are missing; empty if it has one."""
        now_s = asyncio.get_running_loop().time()
        group = self._node.groups.get(name)
        is_lost = now_s - self._since_s.get(name, now_s) >= LOST_S
        if group is None or not is_lost or self._has_quorum(group):
            return ""
        own, voters = self._node.identity.node, sorted(group.config.electorate)
        missing = [each for each in voters if each not in self._seen]
        which = f"{', '.join(missing)} of the voters {', '.join(voters)}"
        return f"there is no quorum: {own} is not connected to {which}"

    def _has_quorum(self, group: Group[Any]) -> bool:
        return bool(group.leader) or has_quorum(group.config, self._seen)

    @property
    def _seen(self) -> set[str]:
        return {self._node.identity.node, *self._node.transport.connected}
