"""The switch to a new generation, without any file."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lithify.compaction.run.journal import RunRecord
from lithify.compaction.run.publish import candidates, publish_edit
from lithify.errors import PlanStale
from lithify.log.manifest import DeadRef, Manifest, SegmentRef

LOG_ID = b"lithify test"


def segment(number: int, *, name: str = "", dead: str = "", entries: int = 10) -> SegmentRef:
    """Segment `number` holds the ten positions from 10 * number."""
    return SegmentRef(
        id=number,
        name=name or f"{number:012d}.seg",
        first_position=10 * number,
        last_position=10 * number + 9,
        entries=entries,
        frame_bytes=100 * entries,
        file_bytes=100 * entries + 168,
        sealed=True,
        dead=DeadRef(dead, 1, 100, 50, 0) if dead else None,
    )


ACTIVE = SegmentRef(9, "000000000009.seg", 90)
A, B, C, D = (segment(number) for number in range(4))
LOG = Manifest("test", LOG_ID, 5, 10, (A, B, C, D, ACTIVE))
TARGET = segment(1, name="000000000001-aa.seg", entries=7)


def record(
    judged: tuple[SegmentRef, ...],
    *,
    dropped: tuple[int, ...] = (),
    groups: tuple[tuple[int, ...], ...] = (),
    targets: dict[int, SegmentRef] | None = None,
    in_view: bool = False,
) -> RunRecord:
    return RunRecord(
        run_id="r1",
        policy="all",
        trigger="admin",
        started_ms=0,
        as_of_ms=0,
        horizon=judged[-1].last_position,
        generation=5,
        in_view=in_view,
        judged=judged,
        dropped=dropped,
        groups=groups,
        causes={},
        targets=targets or {},
    )


# --- candidates -----------------------------------------------------------------------------


def test_candidates_are_sealed_and_wholly_at_or_below_the_horizon() -> None:
    assert candidates(LOG, 29, in_view=False) == (A, B, C)
    assert candidates(LOG, 28, in_view=False) == (A, B)
    assert candidates(LOG, 1000, in_view=False) == (A, B, C, D)
    assert candidates(LOG, -1, in_view=False) == ()


def test_the_first_run_in_the_view_judges_the_log() -> None:
    assert candidates(LOG, 29, in_view=True) == (A, B, C)


def test_a_later_run_in_the_view_judges_the_view_and_what_joins_it() -> None:
    manifest = replace(LOG, view=(A, TARGET), horizon=29)
    assert candidates(manifest, 39, in_view=True) == (A, TARGET, D)
    assert candidates(manifest, 29, in_view=True) == (A, TARGET)


def test_an_empty_view_is_a_view() -> None:
    assert candidates(replace(LOG, view=(), horizon=29), 39, in_view=True) == (D,)


# --- in place -------------------------------------------------------------------------------


def test_in_place_segments_are_dropped_replaced_and_kept() -> None:
    dead = segment(3, dead="000000000003-r1.dead")
    run = record((A, B, C, dead), dropped=(0,), groups=((1, 2),), targets={0: TARGET})
    after = publish_edit(LOG, run)
    assert after.segments == (TARGET, dead, ACTIVE)
    assert after.view is None
    assert (after.horizon, after.last_run) == (39, "r1")


def test_segments_appended_during_the_run_stay_after_the_targets() -> None:
    later = segment(8)
    manifest = replace(LOG, segments=(A, B, C, D, later, ACTIVE), generation=8)
    run = record((A, B, C), dropped=(0, 2), groups=((1,),), targets={0: TARGET})
    assert publish_edit(manifest, run).segments == (TARGET, D, later, ACTIVE)


def test_a_segment_dropped_by_retention_makes_the_run_stale() -> None:
    manifest = replace(LOG, segments=(B, C, D, ACTIVE))
    with pytest.raises(PlanStale, match=A.name):
        publish_edit(manifest, record((A, B, C), groups=((0, 1),), targets={0: TARGET}))


def test_a_segment_replaced_by_another_run_makes_the_run_stale() -> None:
    manifest = replace(LOG, segments=(A, TARGET, D, ACTIVE))
    with pytest.raises(PlanStale, match=B.name):
        publish_edit(manifest, record((A, B, C)))


def test_the_horizon_never_goes_back() -> None:
    assert publish_edit(replace(LOG, horizon=35), record((A, B))).horizon == 35


def test_a_dropped_segment_between_the_sources_of_a_group_goes() -> None:
    run = record((A, B, C, D), dropped=(2,), groups=((1, 3),), targets={0: TARGET})
    assert publish_edit(LOG, run).segments == (A, TARGET, ACTIVE)


# --- in the view ----------------------------------------------------------------------------


def test_in_the_view_the_log_stays_as_it_is() -> None:
    dead = segment(2, dead="000000000002-r1.dead")
    run = record((A, B, dead), dropped=(0,), groups=((1,),), targets={0: TARGET}, in_view=True)
    after = publish_edit(LOG, run)
    assert after.segments == LOG.segments
    assert after.view == (TARGET, dead)
    assert after.horizon == 29


def test_a_segment_in_the_view_that_left_the_log_is_found() -> None:
    manifest = replace(LOG, segments=(C, D, ACTIVE), view=(A, TARGET), horizon=29)
    after = publish_edit(manifest, record((A, TARGET, D), dropped=(0,), in_view=True))
    assert after.view == (TARGET, D)
    assert after.segments == (C, D, ACTIVE)


def test_a_view_of_which_nothing_is_left_is_empty_and_not_missing() -> None:
    after = publish_edit(LOG, record((A, B), dropped=(0, 1), in_view=True))
    assert after.view == ()


def test_a_target_has_the_flags_of_all_it_was_made_from() -> None:
    b, c = replace(B, flags=0x0100), replace(C, flags=0x0800)
    edited = publish_edit(
        replace(LOG, segments=(A, b, c, D, ACTIVE)),
        record((A, b, c, D), groups=((1, 2),), targets={0: TARGET}),
    )
    assert [segment.flags for segment in edited.segments] == [0, 0x0900, 0, 0]
