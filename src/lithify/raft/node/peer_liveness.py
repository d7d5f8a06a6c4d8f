"""Which processes of other nodes are alive. Pure.

    liveness = PeerLiveness("n1", epoch, silence_ticks)
    liveness.heard("n2", epoch_of_n2)   # `NodeAlive`, which a node sends to all others at each tick
    liveness.tick()                     # the nodes that have become silent

One message per pair of nodes and tick replaces the heartbeats of all groups that sleep. Each
process draws an epoch when it starts. So a restart is noticed, however short it was. A process on
which groups that sleep must not rely any longer draws another one (`renew`): for the other nodes
this is a restart.

Ticks are those of this node: while it stands still, no time passes for others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["PeerLiveness"]


class PeerLiveness:
    """See the module."""

    def __init__(self, node: str, draw: Callable[[int], int], silence_ticks: int) -> None:
        self._node = node
        self._draw = draw
        self._silence_ticks = silence_ticks
        self._epochs: dict[str, int] = {}
        self._silent_ticks: dict[str, int] = {}
        self.renew()

    def renew(self) -> None:
        """Have all groups of this node wake on the other nodes."""
        self._epochs[self._node] = 1 + self._draw(2**62)

    def epoch_of(self, node: str) -> int:
        """The epoch of a node, or of this one; 0 if it was not heard for `silence_ticks`."""
        return self._epochs.get(node, 0)

    def heard(self, node: str, epoch: int) -> bool:
        """A node is alive; returns whether groups that sleep have to know it."""
        before = self._epochs.get(node, 0)
        self._epochs[node], self._silent_ticks[node] = epoch, 0
        return before not in (0, epoch)

    def tick(self) -> list[str]:
        """Count one tick; returns the nodes that are silent from here on."""
        silent = []
        for node in self._silent_ticks:
            self._silent_ticks[node] += 1
            if self._silent_ticks[node] >= self._silence_ticks:
                silent.append(node)
        for node in silent:
            del self._silent_ticks[node], self._epochs[node]
        return silent
