"""What a topic may let go, and when it is too far behind. Pure decisions.

Segments are dropped whole and from the head only. One may go when

1. nobody holds it: durable subscriptions hold what they have not acknowledged, consumers that read
   compacted what they will get from the log, and
2. its newest entry is older than the retention time, or what would be left without it is still as
   much as the retention size.

The active segment stays. If all of it is acknowledged and older than the retention time, it is
rolled first, so that an idle topic keeps nothing for ever; not within `ROLL_MS_MIN` of its
beginning, so that a busy topic with a short retention is not all rolls. Whoever reads without a
durable subscription sees a gap.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from lithify.errors import CONFLICT, InvalidInput
from lithify.positions import POSITION_MAX

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from lithify.log.manifest import SegmentRef
    from lithify.topics.definitions.policies import Policies

__all__ = [
    "BacklogExceeded",
    "LogHold",
    "acknowledged_through",
    "active_may_go",
    "first_to_keep",
]

ROLL_MS_MIN = 60_000
"""A roll is four fsyncs."""


class BacklogExceeded(InvalidInput):
    """A subscription is too far behind for more to be written."""

    exit_code = CONFLICT


@dataclass(frozen=True, slots=True)
class LogHold:
    """Somebody who needs what is above a position."""

    name: str
    position: int


NO_HOLD = LogHold("", POSITION_MAX)


def acknowledged_through(holds: Iterable[LogHold]) -> LogHold:
    """The one that needs most; one of nothing if there are none."""
    return min(holds, key=lambda hold: hold.position, default=NO_HOLD)


def first_to_keep(
    segments: Sequence[SegmentRef],
    active_bytes: int,
    *,
    acknowledged: int,
    policies: Policies,
    now_ms: int,
) -> int:
    """The position below which everything may be dropped."""
    before = segments[0].first_position
    left = active_bytes + sum(segment.file_bytes for segment in segments)
    for segment in segments:
        if not segment.sealed or segment.last_position > acknowledged:
            break
        left -= segment.file_bytes
        aged = 0 <= policies.retention_ms <= now_ms - segment.time_max
        ample = 0 <= policies.retention_bytes <= left
        if not (aged or ample):
            break
        before = segment.last_position + 1
    return before


def active_may_go(times_ms: tuple[int, int] | None, policies: Policies, now_ms: int) -> bool:
    """Is all of the active segment over age? `times_ms`: its beginning, its newest entry."""
    if times_ms is None:
        return False
    begun_ms, newest_ms = times_ms
    aged = 0 <= policies.retention_ms <= now_ms - newest_ms
    return aged and now_ms - begun_ms >= ROLL_MS_MIN
