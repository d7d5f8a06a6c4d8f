from __future__ import annotations

import pytest

from lithify.topics.messages.entry_flags import FLAG_AHEAD, FLAG_BATCH
from lithify.topics.producers.publish_times import AHEAD_MS_MAX, correct_publish_times

NOW_MS = 1_700_000_000_000
LATEST_MS = NOW_MS + AHEAD_MS_MAX


@pytest.mark.parametrize("sent_ms", [0, NOW_MS, LATEST_MS])
def test_a_time_within_the_tolerance_is_kept_as_sent(sent_ms: int) -> None:
    times, flags = correct_publish_times([sent_ms], FLAG_BATCH, NOW_MS)
    assert times.tolist() == [sent_ms]
    assert flags == FLAG_BATCH


@pytest.mark.parametrize("sent_ms", [LATEST_MS + 1, 2**63 - 1, -1])
def test_only_a_time_too_far_ahead_is_corrected_and_flagged(sent_ms: int) -> None:
    times, flags = correct_publish_times([NOW_MS, sent_ms], [0, FLAG_BATCH], NOW_MS)
    assert times.tolist() == [NOW_MS, LATEST_MS]
    assert list(map(int, flags)) == [0, FLAG_BATCH | FLAG_AHEAD]  # type: ignore[arg-type]
