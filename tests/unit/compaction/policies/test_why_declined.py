"""A run that is not worth it is declined, and says why; nothing on disk has changed."""

from __future__ import annotations

import pytest

from lithify.compaction.planning.plan import SegmentStats
from lithify.compaction.policies.built_in import plan_all
from lithify.compaction.policies.cheapest_range import plan_cheapest_range
from lithify.compaction.policies.packing import Limits
from lithify.compaction.policies.why_declined import Declined, Eligibility, WhyNot, no_gain
from lithify.compaction.reports.report import Report
from lithify.errors import InvalidSetting

LIMITS = Limits(target_bytes_max=100, target_entries_max=10, overhead_bytes=0)


def segments(*live_bytes: int) -> list[SegmentStats]:
    return [
        SegmentStats(number, number, number, 1, 100, 1 if live else 0, live)
        for number, live in enumerate(live_bytes)
    ]


def test_exactly_the_minimum_of_use_is_enough() -> None:
    half = Eligibility(capacity_bytes=1000, used_percent_min=50)
    assert half.by_use(500) is None
    declined = half.by_use(499)
    assert declined is not None
    assert declined.why is WhyNot.USED_TOO_LITTLE
    assert declined.detail == "499 B of 1000 B are 49.9%, the minimum is 50%"


def test_by_default_everything_is_eligible() -> None:
    anything = Eligibility()
    assert anything.by_use(0) is None
    assert anything.by_plan(plan_all([], LIMITS)) is None


def test_a_plan_must_free_enough_segments() -> None:
    plan = plan_all(segments(0, 50, 50), LIMITS)
    assert plan.segments_freed == 2
    assert Eligibility(segments_freed_min=2).by_plan(plan) is None
    declined = Eligibility(segments_freed_min=3).by_plan(plan)
    assert str(declined) == "frees too little: 2 segments, the minimum is 3"


def test_a_policy_that_keeps_everything_says_why() -> None:
    plan = plan_cheapest_range(segments(100, 100), LIMITS, benefit_segments_min=2)
    assert no_gain(plan) == Declined(
        WhyNot.NOTHING_TO_GAIN,
        "policy stats keeps all 2 segments: no range frees 2 or more segments",
    )
    assert no_gain(plan_all([], LIMITS)).why is WhyNot.NOTHING_SEALED


def test_a_report_keeps_the_reason() -> None:
    declined = Declined(WhyNot.FREES_TOO_LITTLE, "1 segments, the minimum is 3")
    report = Report("r", "log", "all", "periodic", 0, 0, 0, 1, 1, "nothing to do")
    assert "declined" not in report.to_json()
    told = Report("r", "log", "all", "periodic", 0, 0, 0, 1, 1, "nothing to do", declined=declined)
    assert Report.from_json(told.to_json()) == told
    assert told.summary().endswith("frees too little: 1 segments, the minimum is 3")


def test_limits_out_of_range_are_refused() -> None:
    with pytest.raises(InvalidSetting, match="used_percent_min"):
        Eligibility(used_percent_min=101)
    with pytest.raises(InvalidSetting, match="segments_freed_min"):
        Eligibility(segments_freed_min=-1)
