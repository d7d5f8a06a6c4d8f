"""Why a run is declined: it is not worth it. A trigger requests a run; this and the policy decide.

1. By use, before anything is judged: a log with a capacity must use a minimum of it.
2. By plan: the plan must free a minimum number of segments.
3. The policy itself declines by a plan that changes nothing, with a reason for each segment.

A declined run changes nothing on disk; a `Declined` in the report and in the dry run says why.
Pure; called by `compaction/run/compactor.py`.
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
    """The criterion that declined a run."""

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
    """The conditions for a run; by default there are none."""

    capacity_bytes: int = 0
    """Capacity of the log; 0 if it has none."""
    used_percent_min: float = 0
    segments_freed_min: int = 0

    def __post_init__(self) -> None:
        check_range("used_percent_min", self.used_percent_min, 0, 100)
        check_range("segments_freed_min", self.segments_freed_min, 0, SEGMENTS_MAX)

    def by_use(self, used_bytes: int) -> Declined | None:
        """Step 1; the minimum itself is enough."""
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
    """Step 3, for a plan that changes nothing: the most frequent reason for keeping segments."""
    if not plan.kept:
        return Declined(WhyNot.NOTHING_SEALED, "there is no segment that a run may judge")
    reason, _ = Counter(kept.reason for kept in plan.kept).most_common(1)[0]
    detail = f"policy {plan.policy} keeps all {len(plan.kept)} segments: {reason}"
    return Declined(WhyNot.NOTHING_TO_GAIN, detail)
