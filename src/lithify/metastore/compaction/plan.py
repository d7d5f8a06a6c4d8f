"""A plan: what a run would remove from the history, as a value; and a dry run. Pure."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from lithify.compaction.planning.plan import human_bytes
from lithify.compaction.policies.why_declined import Declined, WhyNot

if TYPE_CHECKING:
    from lithify.compaction.planning.horizon import Horizon

__all__ = ["POLICY", "HistoryDryRun", "HistoryPlan"]

POLICY = "revisions"


@dataclass(frozen=True, slots=True)
class HistoryPlan:
    """The effect of raising the floor to a revision."""

    floor: int
    """The floor now."""
    revision: int
    """The new one."""
    revisions: int = 0
    """That can no longer be read."""
    values: int = 0
    tombstones: int = 0
    value_bytes: int = 0

    @property
    def is_empty(self) -> bool:
        """Does it remove nothing?"""
        return not (self.values or self.tombstones)

    def explain(self) -> str:
        """One line."""
        return (
            f"policy {POLICY}: raise the floor from {self.floor} to {self.revision}; "
            f"{self.revisions} revisions can no longer be read, {self.values} values "
            f"({human_bytes(self.value_bytes)}) and {self.tombstones} tombstones are removed"
        )

    def to_json(self) -> dict[str, object]:
        """The fields, as JSON values."""
        return {"policy": POLICY, **asdict(self)}


@dataclass(frozen=True, slots=True)
class HistoryDryRun:
    """The result of a dry run."""

    horizon: Horizon
    plan: HistoryPlan
    now_ms: int
    holds_revision: int
    """The revision at which the named holds were those of the horizon."""

    @property
    def declined(self) -> Declined | None:
        """Why a run would do nothing."""
        if not self.plan.is_empty:
            return None
        if self.plan.revision <= self.plan.floor:
            held_by = " and ".join(hold.describe(self.now_ms) for hold in self.horizon.blocking)
            detail = f"the history above {self.plan.floor} is held by {held_by}"
        else:
            detail = f"everything retained up to {self.plan.revision} is visible above it"
        return Declined(WhyNot.NOTHING_TO_GAIN, detail)

    def explain(self) -> str:
        """Text: the holds at the horizon, the plan, and why it would not be executed."""
        lines = [self.horizon.explain(self.now_ms), self.plan.explain()]
        if self.declined is not None:
            lines.append(f"a run would do nothing, {self.declined}")
        return "\n".join(lines)

    def row(self) -> dict[str, object]:
        """As JSON values, with all holds."""
        declined = self.declined
        return {
            "text": self.explain(),
            "plan": self.plan.to_json(),
            "holds": [asdict(hold) for hold in self.horizon.holds],
            "declined": None if declined is None else asdict(declined),
        }
