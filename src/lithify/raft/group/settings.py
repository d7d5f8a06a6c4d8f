"""The settings of one member of one group. Checked when created. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lithify.clock import Clock, SystemClock
from lithify.raft.compaction.rewrite_pacing import RewriteSettings
from lithify.raft.compaction.settings import GroupCompactionSettings
from lithify.raft.core import Config, CoreSettings
from lithify.raft.snapshots.sending import SendingSettings
from lithify.settings import check_range

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["GroupSettings"]


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """See the module."""

    members: Config = field(default_factory=Config)
    """The first members, the same on all of them; empty on a member that joins later."""
    snapshot_entries: int = 4096
    """Commands after which a snapshot is taken."""
    sending: SendingSettings = field(default_factory=SendingSettings)
    receive_silence_ticks: int = 300
    """Ticks without a message after which an incoming transfer is aborted."""
    compaction: GroupCompactionSettings = field(default_factory=GroupCompactionSettings)
    rewriting: RewriteSettings = field(default_factory=RewriteSettings)
    clock: Clock = field(default_factory=SystemClock)
    """For the time in commands, and for compaction's timer."""
    core: Callable[[str, Callable[[int], int]], CoreSettings] = CoreSettings
    """Makes the core's settings from a node's name and its draw; `partial(CoreSettings, …)`."""

    def __post_init__(self) -> None:
        check_range("snapshot_entries", self.snapshot_entries, 1, 2**48)
        check_range("receive_silence_ticks", self.receive_silence_ticks, 1, 2**31)
