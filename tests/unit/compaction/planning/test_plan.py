"""A plan as a value: what it says, what it refuses, what a log looks like after it."""

from __future__ import annotations

import json
from dataclasses import replace
from textwrap import dedent
from typing import Any

import pytest

from lithify.compaction.planning.plan import (
    DroppedSegment,
    KeptSegment,
    Plan,
    SegmentGroup,
    SegmentStats,
    apply_plan,
    human_bytes,
)
from lithify.errors import InvalidInput, PlanStale

DEAD = SegmentStats(1, 0, 9, entries=10, bytes=1000, live_entries=0, live_bytes=0)
HALF = SegmentStats(2, 10, 19, entries=10, bytes=1000, live_entries=5, live_bytes=500)
GONE = SegmentStats(3, 20, 29, entries=10, bytes=2000, live_entries=0, live_bytes=0)
THIN = SegmentStats(4, 30, 39, entries=10, bytes=1000, live_entries=1, live_bytes=100)
LAST = SegmentStats(
    5, 40, 49, entries=10, bytes=1000, live_entries=10, live_bytes=1000, sealed=False
)
LOG = (DEAD, HALF, GONE, THIN, LAST)

PLAN = Plan(
    policy="by hand",
    dropped=(DroppedSegment(1, 1000, "no live entry"), DroppedSegment(3, 2000, "no live entry")),
    groups=(SegmentGroup((2, 4), 20, 2000, 6, 600, "two into one"),),
    kept=(KeptSegment(5, "active"),),
    overhead_bytes=100,
)


def test_a_plan_explains_itself() -> None:
    assert PLAN.explain() == dedent("""\
        policy by hand
        action   segments  live entries  live bytes        reason
        drop     1         0             0 B of 1000 B     no live entry
        drop     3         0             0 B of 2.0 KiB    no live entry
        rewrite  2,4       6 of 20       600 B of 2.0 KiB  two into one
        keep     5         -             -                 active
        total: 2 dropped, 2 rewritten into 1, 1 kept; reads 600 B, writes 700 B, \
frees 4.6 KiB and 3 segments, at 100 B a file""")


def test_neighbours_with_consecutive_ids_are_explained_as_a_range() -> None:
    group = SegmentGroup((3, 4, 5, 9, 11, 12), 6, 6, 6, 6, "many")
    plan = replace(PLAN, dropped=(), kept=(), groups=(group,))
    assert "rewrite  3-5,9,11-12  6 of 6" in plan.explain()


def test_an_empty_plan_explains_that_it_does_nothing() -> None:
    plan = Plan("all", (), (), (), 160)
    assert plan.is_empty
    assert plan.explain() == dedent("""\
        policy all
        action  segments  live entries  live bytes  reason
        total: 0 dropped, 0 rewritten into 0, 0 kept; reads 0 B, writes 0 B, \
frees 0 B and 0 segments, at 160 B a file""")


def test_the_totals_count_the_overhead_of_each_file() -> None:
    assert not PLAN.is_empty
    assert PLAN.bytes_read == 600
    assert PLAN.bytes_written == 600 + 100
    # Files 1 and 3 go, 2 and 4 become one: three files of overhead and all dead frames.
    assert PLAN.segments_freed == 3
    assert PLAN.bytes_freed == 1000 + 2000 + 1400 + 3 * 100


def test_a_target_replaces_its_sources_in_place() -> None:
    target = SegmentStats(2, 10, 39, entries=6, bytes=600, live_entries=6, live_bytes=600)
    assert apply_plan(PLAN, LOG) == (target, LAST)


def test_a_group_adds_its_sources_up() -> None:
    assert SegmentGroup.of([HALF, THIN], "two into one") == PLAN.groups[0]


@pytest.mark.parametrize(
    ("log", "complaint"),
    [
        (LOG[1:], "segments 1 are in the log or in the plan, not in both"),
        ((*LOG, replace(LAST, id=6)), "segments 6 are in the log or in the plan, not in both"),
        ((replace(HALF, id=1), *LOG[1:]), "segment 1 is not the dead one that was to be dropped"),
        ((replace(DEAD, bytes=999), *LOG[1:]), "segment 1 is not the dead one"),
        ((DEAD, replace(HALF, busy=True), *LOG[2:]), "segment 2 is busy now"),
        ((DEAD, HALF, GONE, replace(THIN, sealed=False), LAST), "segment 4 is active now"),
        ((DEAD, HALF, LAST, GONE, THIN), "segments 2,4 are not adjacent in the log"),
        ((DEAD, THIN, GONE, HALF, LAST), "segments 2,4 are not adjacent in the log"),
        ((DEAD, replace(HALF, live_bytes=501), *LOG[2:]), "segments 2,4 have changed their sizes"),
    ],
)
def test_a_plan_is_not_applied_to_a_log_that_changed(
    log: tuple[SegmentStats, ...], complaint: str
) -> None:
    with pytest.raises(PlanStale, match=complaint):
        apply_plan(PLAN, log)


def test_a_plan_survives_json() -> None:
    text = json.dumps(PLAN.to_json())
    assert Plan.from_json(json.loads(text)) == PLAN


def test_the_json_of_a_plan_has_its_field_names() -> None:
    assert PLAN.to_json() == {
        "policy": "by hand",
        "dropped": [
            {"segment": 1, "bytes": 1000, "reason": "no live entry"},
            {"segment": 3, "bytes": 2000, "reason": "no live entry"},
        ],
        "groups": [
            {
                "sources": [2, 4],
                "entries": 20,
                "bytes": 2000,
                "live_entries": 6,
                "live_bytes": 600,
                "reason": "two into one",
            }
        ],
        "kept": [{"segment": 5, "reason": "active"}],
        "overhead_bytes": 100,
    }


@pytest.mark.parametrize(
    ("damage", "complaint"),
    [
        ({"policy": 7}, "'policy' is 7, must be a JSON str"),
        ({"overhead_bytes": True}, "'overhead_bytes' is True, must be a JSON int"),
        ({"overhead_bytes": -1}, "overhead_bytes -1, must be >= 0"),
        ({"kept": {}}, "'kept' is {}, must be a JSON list"),
        ({"kept": [5]}, "plan has 5 where an object with field 'segment' must be"),
        ({"kept": [{"segment": 5}]}, "an object with field 'reason' must be"),
        ({"kept": [{"segment": 1, "reason": ""}]}, "segment 1 in 2 places, must be 1"),
        ({"dropped": [{"segment": 1, "bytes": -1, "reason": ""}]}, "segment 1 has -1 bytes"),
        ({"groups": [{"sources": ["2"]}]}, "'sources' has '2', must be a JSON int"),
    ],
)
def test_bad_json_is_refused_by_the_name_of_its_field(
    damage: dict[str, object], complaint: str
) -> None:
    with pytest.raises(InvalidInput) as error:
        Plan.from_json(PLAN.to_json() | damage)
    assert complaint in str(error.value)


@pytest.mark.parametrize(
    ("wrong", "complaint"),
    [
        ({"live_entries": 11}, "segment 2 has 11 of 10 entries"),
        ({"live_entries": -1}, "segment 2 has -1 of 10 entries"),
        ({"live_bytes": 1001}, "and 1001 of 1000 bytes live, must be 0 <= live <= total"),
        ({"live_bytes": 0}, "segment 2 has 5 live entries in 0 bytes, must both be zero"),
        ({"live_entries": 0}, "segment 2 has 0 live entries in 500 bytes, must both be zero"),
        ({"live_bytes": 1000}, "segment 2 has 5 dead entries in 0 dead bytes"),
        ({"last_position": 8}, "segment 2 has 10 entries at positions 10 to 8"),
        ({"last_position": 9}, "segment 2 has 10 entries at positions 10 to 9"),
        ({"first_position": -1}, "segment 2 has 10 entries at positions -1 to 19"),
    ],
)
def test_invalid_statistics_are_refused(wrong: dict[str, Any], complaint: str) -> None:
    with pytest.raises(InvalidInput) as error:
        replace(HALF, **wrong)
    assert complaint in str(error.value)


def test_a_segment_without_entries_covers_no_position_and_is_dead() -> None:
    empty = SegmentStats(1, 10, 9, entries=0, bytes=0, live_entries=0, live_bytes=0)
    assert empty.is_dead


def test_a_partly_live_batch_has_dead_bytes_and_no_dead_entry() -> None:
    assert replace(HALF, live_entries=10).dead_bytes == 500


def test_a_group_must_have_something_to_copy() -> None:
    with pytest.raises(InvalidInput, match="no sources"):
        SegmentGroup((), 0, 0, 0, 0, "")
    with pytest.raises(InvalidInput, match="group 1 has no live entry"):
        SegmentGroup.of([DEAD], "")


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (1536, "1.5 KiB"),
        (64 << 20, "64.0 MiB"),
        (3 << 40, "3.0 TiB"),
        (2 << 60, "2048.0 PiB"),
    ],
)
def test_sizes_are_printed_in_the_unit_that_fits(count: int, text: str) -> None:
    assert human_bytes(count) == text
