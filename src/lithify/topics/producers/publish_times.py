"""Publish times: the time in the frame of an entry, which a client's clock cannot move far ahead.

A publish time comes from the client's clock. The time in the frame is at most `AHEAD_MS_MAX` ahead
of the broker's clock. Otherwise one wrong clock would keep its messages, and all later ones, young
for years in the view of retention, time to live and the minimum lag of compaction. The message
keeps the time as sent; the flag `FLAG_AHEAD` of the frame tells that the two differ.

Pure. Called by the writer of a topic.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from lithify.topics.messages.entry_flags import FLAG_AHEAD

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Numbers = NDArray[np.int64] | Sequence[int]

__all__ = ["correct_publish_times"]

AHEAD_MS_MAX = 60_000
"""Tolerance for client clocks that are ahead; within it, seeks by time use the time as sent."""


def correct_publish_times(
    times: Numbers, flags: Numbers | int, now_ms: int
) -> tuple[NDArray[np.int64], Numbers | int]:
    """(the times for the frames, their flags) of entries with these publish times and flags."""
    latest_ms = np.uint64(now_ms + AHEAD_MS_MAX)
    # Unsigned as in the protocol, so that the largest times do not become negative.
    sent = np.asarray(times, dtype=np.int64).view(np.uint64)
    corrected = np.minimum(sent, latest_ms).view(np.int64)
    ahead = sent > latest_ms
    if ahead.any():
        flags = np.where(ahead, FLAG_AHEAD, 0) | np.asarray(flags)
    return corrected, flags
