"""Whether a run is worth it, and why not: a trigger asks, this and the policy decide.

1. By use, before anything is judged: a log that has a capacity must use so much of it.
2. By plan: the plan must free so many segments.
3. A plan that changes nothing is declined by the policy itself, which says why each segment stays.

What is declined changes nothing on disk; the answer is a `Declined` in the report and in the dry
run. Pure; called by `compaction/run/compactor.py`.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from lithify.compaction.planning.plan import human_bytes
from lithify.settings import check_range

if TYPE_CHECKING:
    from lithify.compaction.planning.plan import Plan

__all__ = ["Declined", "Eligibility", "WhyNot", "no_gain"]

SEGMENTS_MAX = 2**31


class WhyNot(StrEnum):
    """What a run was declined for."""

    USED_TOO_LITTLE = "used too little"
    FREES_TOO_LITTLE = "frees too little"
    NOTHING_SEALED = "nothing sealed"
    NOTHING_TO_GAIN = "nothing to gain"


@dataclass(frozen=True, slots=True)
class Declined:
    """Why a run does nothing."""

    why: WhyNot
    detail: str

    def __str__(self) -> str:
        return f"{self.why}: {self.detail}"


@dataclass(frozen=True, slots=True)
class Eligibility:
    """What a log must be like for a run; by default anything will do."""

    capacity_bytes: int = 0
    """Of the log; 0 where there is none."""
    used_percent_min: float = 0
    segments_freed_min: int = 0

    def __post_init__(self) -> None:
        check_range("used_percent_min", self.used_percent_min, 0, 100)
        check_range("segments_freed_min", self.segments_freed_min, 0, SEGMENTS_MAX)

    def by_use(self, used_bytes: int) -> Declined | None:
        """Step 1; exactly the minimum is enough."""
        if used_bytes * 100 >= self.used_percent_min * self.capacity_bytes:
            return None
        detail = (
            f"{human_bytes(used_bytes)} of {human_bytes(self.capacity_bytes)} are "
            f"{used_bytes / self.capacity_bytes:.1%}, the minimum is {self.used_percent_min:g}%"
        )
        return Declined(WhyNot.USED_TOO_LITTLE, detail)

    def by_plan(self, plan: Plan) -> Declined | None:
        """Step 2."""
        if plan.segments_freed >= self.segments_freed_min:
            return None
        if plan.is_empty and plan.kept:
            return no_gain(plan)
        detail = f"{plan.segments_freed} segments, the minimum is {self.segments_freed_min}"
        return Declined(WhyNot.FREES_TOO_LITTLE, detail)


def no_gain(plan: Plan) -> Declined:
    """Step 3, for a plan that changes nothing: the reason most segments stay for."""
    if not plan.kept:
        return Declined(WhyNot.NOTHING_SEALED, "there is no segment that a run may judge")
    reason, _ = Counter(kept.reason for kept in plan.kept).most_common(1)[0]
    detail = f"policy {plan.policy} keeps all {len(plan.kept)} segments: {reason}"
    return Declined(WhyNot.NOTHING_TO_GAIN, detail)
