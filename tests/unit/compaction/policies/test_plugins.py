"""A policy that a package brings is used by its name, and believed only after it was checked."""

from __future__ import annotations

import sys
from textwrap import dedent
from typing import TYPE_CHECKING

import pytest

from lithify.blobs.settings import BlobSettings
from lithify.compaction.planning.plan import SegmentStats
from lithify.compaction.policies.packing import Limits
from lithify.compaction.policies.plugins import PolicyFailed, check_policy, plan_by_name
from lithify.errors import InvalidSetting

if TYPE_CHECKING:
    from pathlib import Path

LIMITS = Limits(target_bytes_max=100, target_entries_max=10, overhead_bytes=0)
SEGMENTS = [
    SegmentStats(0, 0, 0, 1, 100, 1, 60),
    SegmentStats(1, 1, 1, 1, 100, 0, 0),
    SegmentStats(2, 2, 2, 1, 100, 1, 40),
]
POLICIES = """
from lithify.compaction.planning.plan import DroppedSegment, KeptSegment, Plan
from lithify.compaction.policies.built_in import plan_whole_dead

def careful(segments, limits):
    return plan_whole_dead(segments, limits)

def reckless(segments, limits):
    gone = tuple(DroppedSegment(s.id, s.bytes, "why not") for s in segments)
    return Plan("reckless", gone, (), (), limits.overhead_bytes)

def forgetful(segments, limits):
    return Plan("forgetful", (), (), (), limits.overhead_bytes)

def broken(segments, limits):
    raise RuntimeError("no idea")

def wordy(segments, limits):
    return "drop everything"
"""


@pytest.fixture(autouse=True)
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package with policies is installed."""
    (tmp_path / "careful_policies.py").write_text(POLICIES)
    info = tmp_path / "careful_policies-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: careful-policies\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        dedent("""\
        [lithify.compaction_policies]
        careful = careful_policies:careful
        reckless = careful_policies:reckless
        forgetful = careful_policies:forgetful
        broken = careful_policies:broken
        wordy = careful_policies:wordy
        missing = careful_policies:missing
        """)
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "careful_policies", raising=False)


def test_it_is_used_by_its_name() -> None:
    plan = plan_by_name("careful", SEGMENTS, LIMITS)
    assert [dropped.segment for dropped in plan.dropped] == [1]
    assert BlobSettings(policy="careful").policy == "careful"


def test_an_unknown_name_is_refused_with_the_list_of_names() -> None:
    with pytest.raises(InvalidSetting, match="one of all, stats, hybrid, broken, careful"):
        BlobSettings(policy="best")
    with pytest.raises(InvalidSetting, match="view, broken, careful"):
        check_policy("best")


def test_a_plug_in_cannot_replace_a_built_in_policy() -> None:
    assert plan_by_name("all", SEGMENTS, LIMITS).policy == "all"


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("reckless", "segment 0 is not the dead one"),
        ("forgetful", "segments 0-2 are in the log or in the plan"),
        ("broken", "RuntimeError: no idea"),
        ("wordy", "it returned 'drop everything', not a plan"),
        ("missing", "has no attribute 'missing'"),
    ],
)
def test_a_fault_of_a_service_is_reported_with_its_name(name: str, reason: str) -> None:
    with pytest.raises(PolicyFailed, match=f"policy {name} .careful_policies:{name}. failed"):
        plan_by_name(name, SEGMENTS, LIMITS)
    with pytest.raises(PolicyFailed, match=reason):
        plan_by_name(name, SEGMENTS, LIMITS)
