"""What a topic may let go, and when it is too far behind. Pure decisions.

Segments are dropped whole and from the head only. One may go when

1. every durable subscription has acknowledged all of it, and
2. its newest entry is older than the retention time, or what would be left without it is still as
   much as the retention size.

The active segment stays. Whoever reads without a durable subscription sees a gap.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lithify.errors import InvalidInput
from lithify.positions import POSITION_MAX

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from lithify.log.manifest import SegmentRef
    from lithify.topics.policies import Policies

__all__ = ["BacklogExceeded", "acknowledged_through", "first_to_keep"]


class BacklogExceeded(InvalidInput):
    """A subscription is too far behind for more to be written."""


def acknowledged_through(mark_deletes: Iterable[int]) -> int:
    """Up to where all durable subscriptions have acknowledged; all if there are none."""
    return min(mark_deletes, default=POSITION_MAX)


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
