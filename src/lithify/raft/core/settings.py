"""Settings of a consensus core, with their limits. The unit of time is the tick of the driver."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from lithify.errors import InvalidSetting
from lithify.raft.core.configuration import check_name
from lithify.raft.core.events import CoreEventSink, ignore_core_events
from lithify.settings import check_range

if TYPE_CHECKING:
    from collections.abc import Callable

    from lithify.raft.core.configuration import Config

__all__ = ["CoreSettings"]

BYTES_MAX = 1 << 40


def _always(_: Config) -> bool:
    return True


def _nothing() -> bytes:
    return b""


def _unknown(_: str) -> int:
    return 0


@dataclass(frozen=True, slots=True)
class CoreSettings:
    """Settings of one member of one group.

    `draw(n)` returns a random number from 0 to below n; it is the core's only source of randomness.
    """

    node: str
    draw: Callable[[int], int]
    events: CoreEventSink = ignore_core_events
    may_vote: Callable[[Config], bool] = _always
    """Whether this member may vote and campaign, with these members in force. A member whose
    directory is not the one that the others know must not: it has lost its votes."""
    founding: Callable[[], bytes] = _nothing
    """Payload of the first entry of the log, if this member writes it."""
    epoch_of: Callable[[str], int] = _unknown
    """The epoch of the process on a node, this one included; 0 if it was not heard lately."""
    sleep_ticks: int = 30
    """Ticks without work after which a leader has its group sleep; 0: never."""
    heartbeat_ticks: int = 1
    election_ticks: int = 10
    """Silence after which a leader counts as failed. Each timeout is a new random value between
    this and twice as much, so that two candidates do not collide repeatedly."""
    append_bytes_max: int = 1 << 20
    """Maximum size of the entries of one message; a larger entry is sent alone."""
    inflight_messages_max: int = 256
    inflight_bytes_max: int = 16 << 20
    """Maximum in flight to a peer: 16 full messages, or 256 small ones."""
    uncommitted_bytes_max: int = 64 << 20
    """Proposals above this are refused until the group and the local disk have caught up."""
    apply_bytes_max: int = 8 << 20
    """Maximum size of entries handed out to be applied and not confirmed."""

    def __post_init__(self) -> None:
        check_name(self.node)
        check_range("sleep_ticks", self.sleep_ticks, 0, 1_000_000)
        check_range("heartbeat_ticks", self.heartbeat_ticks, 1, 1_000_000)
        check_range("election_ticks", self.election_ticks, 2, 1_000_000)
        if self.election_ticks <= self.heartbeat_ticks:
            limit = f"above heartbeat_ticks, which is {self.heartbeat_ticks}"
            raise InvalidSetting("election_ticks", self.election_ticks, limit)
        check_range("append_bytes_max", self.append_bytes_max, 1, BYTES_MAX)
        check_range("inflight_messages_max", self.inflight_messages_max, 1, 1 << 20)
        check_range("inflight_bytes_max", self.inflight_bytes_max, 1, BYTES_MAX)
        check_range("uncommitted_bytes_max", self.uncommitted_bytes_max, 1, BYTES_MAX)
        check_range("apply_bytes_max", self.apply_bytes_max, 1, BYTES_MAX)
