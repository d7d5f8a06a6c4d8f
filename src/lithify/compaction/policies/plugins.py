"""Policies by name, those of installed packages included.

A package offers a policy as an entry point:

    [project.entry-points."lithify.compaction_policies"]
    nightly = "my_package:plan_nightly"

    def plan_nightly(segments: Sequence[SegmentStats], limits: Limits) -> Plan: ...

1. The names of `built_in.py` take precedence and cannot be replaced.
2. Any other name is looked up in the entry points, and loaded when it is used.
3. The plan of an entry point is validated: every segment in one place, dropped segments dead,
   groups adjacent. An exception, or another return value, becomes `PolicyFailed`.

Called by `compaction/run/compactor.py`, and by settings that name a policy.
"""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import TYPE_CHECKING

from lithify.compaction.planning.plan import Plan, apply_plan
from lithify.compaction.policies.built_in import POLICIES
from lithify.errors import InvalidSetting, LithifyError

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from importlib.metadata import EntryPoint

    from lithify.compaction.planning.plan import SegmentStats
    from lithify.compaction.policies.packing import Limits

__all__ = ["POLICY_GROUP", "PolicyFailed", "check_policy", "plan_by_name"]

POLICY_GROUP = "lithify.compaction_policies"


class PolicyFailed(LithifyError):
    """The policy of an installed package could not be loaded, or returned no valid plan."""

    def __init__(self, name: str, origin: str, reason: str) -> None:
        self.name = name
        super().__init__(f"policy {name} ({origin}) failed: {reason}")


def check_policy(name: str, known: Collection[str] = tuple(POLICIES)) -> None:
    """Raise unless the policy is in `known` or installed."""
    if name not in known:
        _installed(name, known)


def plan_by_name(
    name: str, segments: Sequence[SegmentStats], limits: Limits, **options: float
) -> Plan:
    """The plan of the policy `name`; `options` are passed to its function."""
    if name in POLICIES:
        return POLICIES[name](segments, limits, **options)
    point = _installed(name, tuple(POLICIES))
    try:
        plan = point.load()(segments, limits, **options)
        if isinstance(plan, Plan):
            apply_plan(plan, segments)
    except Exception as error:
        raise PolicyFailed(name, point.value, f"{type(error).__name__}: {error}") from error
    if not isinstance(plan, Plan):
        raise PolicyFailed(name, point.value, f"it returned {plan!r}, not a plan")
    return plan


def _installed(name: str, known: Collection[str]) -> EntryPoint:
    points = entry_points(group=POLICY_GROUP)
    if name not in points.names:
        others = ", ".join([*known, *sorted(points.names)])
        raise InvalidSetting("policy", name, f"one of {others}")
    return points[name]
