"""The settings of a Raft node. Checked when created. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lithify.errors import InvalidSetting
from lithify.raft.group.settings import GroupSettings
from lithify.raft.storage.storage import StorageSettings
from lithify.settings import check_range

if TYPE_CHECKING:
    from collections.abc import Callable

    from lithify.compaction.scheduling.run_queue import RunQueue
    from lithify.raft.net.client_operations import Address
    from lithify.raft.net.cluster_secret import ClusterSecret
    from lithify.raft.net.transport import Tls

__all__ = ["VOTERS_MAX", "RaftNodeSettings"]

VOTERS_MAX = 5
"""Voters of a cluster whose operator has not named more: each further one makes writes slower."""


def _hold_none(_: str) -> bool:
    return False


@dataclass(frozen=True, slots=True)
class RaftNodeSettings:
    """See the module."""

    node: str
    data: str
    listen: Address | None
    """None: the node is a cluster of one, and opens no port."""
    peers: dict[str, str] = field(default_factory=dict)
    """The addresses of other nodes."""
    voters: tuple[str, ...] = ()
    """The first members, at the first start; empty: the node and all peers.

    A node that is none of them waits until it is added, as with `join`.
    """
    first_group: str = "default"
    """The group that a new cluster begins with."""
    keeps_first_group: bool = False
    """Refuse clients that drop the first group."""
    join: bool = False
    """Create no group: wait until the node is added to one."""
    is_named: bool = True
    """False: the name was drawn, and is for a new directory only."""
    cluster: str = "raft"
    tls: Tls | None = None
    secret: ClusterSecret | None = None
    """What nodes and clients must prove; see `raft/net/cluster_secret.py`."""
    advertised_host: str = ""
    """The host at which other nodes reach this one; if empty, that of `listen`."""
    tick_ms: int = 100
    """The unit of all timeouts of Raft: a heartbeat each, an election after ten to twenty."""
    group: GroupSettings = field(default_factory=GroupSettings)
    storage: StorageSettings = field(default_factory=StorageSettings)
    holds: Callable[[str], bool] = _hold_none
    """The groups, by name, whose members begin when they are released: `held_members.py`."""
    queue: RunQueue | None = None
    """The queue of the runs of the process; None: one for its groups. The node closes it."""

    def __post_init__(self) -> None:
        check_range("tick_ms", self.tick_ms, 1, 60_000)
        if self.node in self.peers:
            raise InvalidSetting("peers", self.node, "others than the node itself")
        if self.listen is None and (self.peers or self.join):
            raise InvalidSetting("listen", None, "an address, because the node has peers or joins")
        unknown = sorted(set(self.voters) - {self.node, *self.peers})
        if unknown:
            raise InvalidSetting("voters", unknown[0], "the node or one of its peers")
        if not (self.voters or self.join) and len(self.peers) >= VOTERS_MAX:
            limit = f"given for a cluster of more than {VOTERS_MAX} nodes"
            raise InvalidSetting("voters", (), limit)

    @property
    def first_members(self) -> list[str]:
        """The first members of the first group."""
        return sorted(self.voters or {self.node, *self.peers})
