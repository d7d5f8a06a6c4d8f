"""Retention: which segments a topic may drop. Pure decisions; `maintenance.py` applies them.

Segments are dropped whole and from the head only. A segment may be dropped when

1. nothing holds it: a durable subscription holds entries that it has not acknowledged, a consumer
   that reads compacted holds entries that it will read from the log; and
2. its newest entry is older than the retention time, or the rest of the log is at least as large as
   the retention size.

The active segment is not dropped. If all of it is acknowledged and older than the retention time,
it is rolled first, so that an idle topic does not keep old messages indefinitely. It is not rolled
within `ROLL_MS_MIN` of its creation, so that a busy topic with a short retention time does not roll
constantly. A reader without a durable subscription sees a gap.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from lithify.positions import POSITION_MAX

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from lithify.log.manifest import SegmentRef
    from lithify.topics.definitions.policies import Policies

__all__ = ["LogHold", "acknowledged_through", "active_may_go", "first_to_keep"]

ROLL_MS_MIN = 60_000
"""Minimum age of an active segment before a roll for retention; a roll costs four fsyncs."""


@dataclass(frozen=True, slots=True)
class LogHold:
    """A named user of the log that needs all entries above a position."""

    name: str
    position: int


NO_HOLD = LogHold("", POSITION_MAX)


def acknowledged_through(holds: Iterable[LogHold]) -> LogHold:
    """The hold with the lowest position; `NO_HOLD` if there are no holds."""
    return min(holds, key=lambda hold: hold.position, default=NO_HOLD)


def first_to_keep(
    segments: Sequence[SegmentRef],
    active_bytes: int,
    *,
    acknowledged: int,
    policies: Policies,
    now_ms: int,
) -> int:
    """The first position to keep; all entries below it may be dropped."""
    keep_from = segments[0].first_position
    bytes_left = active_bytes + sum(segment.file_bytes for segment in segments)
    for segment in segments:
        if not segment.sealed or segment.last_position > acknowledged:
            break
        bytes_left -= segment.file_bytes
        aged = 0 <= policies.retention_ms <= now_ms - segment.time_max
        ample = 0 <= policies.retention_bytes <= bytes_left
        if not (aged or ample):
            break
        keep_from = segment.last_position + 1
    return keep_from


def active_may_go(times_ms: tuple[int, int] | None, policies: Policies, now_ms: int) -> bool:
    """Is the whole active segment past retention? `times_ms`: (first entry, newest entry)."""
    if times_ms is None:
        return False
    first_ms, newest_ms = times_ms
    aged = 0 <= policies.retention_ms <= now_ms - newest_ms
    return aged and now_ms - first_ms >= ROLL_MS_MIN
