"""The clock of a node: ticks its groups, and watches the processes of other nodes.

At each tick

1. the groups that do not sleep are ticked (`group_ticks.py`);
2. each connected node gets a `NodeAlive`, for all groups that sleep (`peer_liveness.py`). When a
   node is silent, or another process runs there, all groups are notified, and those that rely on it
   wake;
3. everything else in the node that counts ticks is ticked.

The first group never sleeps: its members watch each other also for what is outside of Raft, such as
leases. A member of an earlier version sends no `NodeAlive`, so no group of it sleeps.

Ticks that a stopped process missed are not made up for. Called in the node's event loop.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from itertools import count
from typing import TYPE_CHECKING, Any

from lithify.raft.core import PeerChanged
from lithify.raft.node.group_ticks import GroupTicks
from lithify.raft.node.peer_liveness import PeerLiveness
from lithify.raft.storage.file_names import group_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from lithify.raft.core import CoreSettings
    from lithify.raft.group.group import Group
    from lithify.raft.node.node import RaftNode

__all__ = ["NodeTicks"]

CHECK_MS = 1000
"""The interval at which the triggers of compaction are checked."""


class NodeTicks:
    """See the module."""

    def __init__(self, node: RaftNode, draw: Callable[[int], int]) -> None:
        settings = node.settings
        self._node = node
        self._check_ticks = max(1, CHECK_MS // settings.tick_ms)
        election_ticks = settings.group.core(settings.node, draw).election_ticks
        self._liveness = PeerLiveness(settings.node, draw, election_ticks)
        self._groups = GroupTicks()
        self._changed: set[str] = set()
        """Groups that have worked since the triggers were last checked."""

    def sleeping(self, name: str, settings: CoreSettings) -> CoreSettings:
        """The settings of the core of a group, which may sleep."""
        may_sleep = name != self._node.settings.first_group
        return replace(
            settings,
            epoch_of=self._liveness.epoch_of,
            sleep_ticks=settings.sleep_ticks if may_sleep else 0,
        )

    # --- events -----------------------------------------------------------------------------

    def worked(self, group: Group[Any]) -> None:
        """A group has begun, or has worked."""
        name = group_of(group.name)
        self._groups.worked(name, group)
        self._changed.add(name)

    def forget(self, name: str) -> None:
        """A group has left."""
        self._groups.forget(name)

    def wake_others(self) -> None:
        """A member here has stopped, and others may sleep under its lead."""
        self._liveness.renew()

    def heard(self, peer: str, epoch: int) -> None:
        """A node is alive."""
        if self._liveness.heard(peer, epoch):
            self._peer_changed(peer)

    def _peer_changed(self, peer: str) -> None:
        with self._node.guarded():
            for group in self._node.groups.values():
                group.report(PeerChanged(peer))
                self._node.mark(group)

    # --- time -------------------------------------------------------------------------------

    async def run(self) -> None:
        """Tick until cancelled."""
        for tick in count(1):
            await asyncio.sleep(self._node.settings.tick_ms / 1000)
            with self._node.guarded():
                self._tick(tick)

    def _tick(self, tick: int) -> None:
        node = self._node
        if tick % self._check_ticks == 0:
            changed, self._changed = self._changed, set()
            node.runs.observe(node.groups, changed)
        for peer in self._liveness.tick():
            self._peer_changed(peer)
        node.transport.send_alive(self._liveness.epoch_of(node.identity.node))
        for group in self._groups.tick():
            node.mark(group)
            if group.is_lonely:
                node.notices.report_lonely(group)
        node.tick(tick, self._groups.awake.values())
