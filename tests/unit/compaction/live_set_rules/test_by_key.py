"""What rules that judge by key share: ranges in, bits out, and nothing in the wrong order."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import pytest

from lithify.compaction.live_set_rules.by_key import (
    add_up_dropped,
    by_segment,
    count_dropped,
    in_order,
    live_rows,
    plan_ranges,
)
from lithify.compaction.reports.report import Cause
from lithify.compaction.tasks.find_or_build_key_index import IndexTask
from lithify.errors import PlanStale
from lithify.fs import MemoryFileSystem
from lithify.log.manifest import SegmentRef

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(frozen=True)
class Said:
    """What a task says of a segment."""

    rows: int
    bits: bytes
    dropped: dict[Cause, tuple[int, int]] = field(default_factory=dict)


TASK = IndexTask(MemoryFileSystem(), "/log", SegmentRef(1, "000000000001.seg", 0), bytes(12))


def test_ranges_cover_all_buckets_once_and_stay_within_the_memory() -> None:
    for rows, slots, memory_bytes in [(0, 1, 1), (10**6, 2, 2**20), (10**9, 4, 2**30)]:
        ranges = plan_ranges(rows, slots, memory_bytes, row_bytes=100)
        assert ranges[0][0] == 0
        assert ranges[-1][1] == 256
        assert all(before[1] == after[0] for before, after in pairwise(ranges))
        assert slots <= len(ranges) <= 256
    # A million rows of 100 bytes, two tasks at a time in 10 MB: 20 tasks of 50,000 rows.
    assert len(plan_ranges(10**6, 2, 10**7, 100)) == 20


def test_results_come_in_the_order_of_tasks_as_soon_as_they_can() -> None:
    taken = []

    def results() -> Iterator[tuple[int, str]]:
        for number, name in [(1, "b"), (0, "a"), (3, "d"), (2, "c")]:
            taken.append(name)
            yield number, name

    ordered = in_order(results())
    assert next(ordered) == "a"
    assert taken == ["b", "a"]
    assert list(ordered) == ["b", "c", "d"]


def test_answers_by_range_become_answers_by_segment() -> None:
    assert by_segment([["r0 s0", "r0 s1"], ["r1 s0", "r1 s1"]]) == [  # type: ignore[type-var]
        ("r0 s0", "r1 s0"),
        ("r0 s1", "r1 s1"),
    ]


def test_the_bits_of_all_ranges_are_the_live_rows_of_a_segment() -> None:
    pieces = [Said(3, b"\xa0"), Said(0, b""), Said(9, b"\x01\x80")]
    assert live_rows(TASK, pieces, 12).tolist() == [0, 2, 10, 11]


def test_an_index_with_other_rows_than_were_judged_makes_the_run_stale() -> None:
    with pytest.raises(PlanStale, match=r"000000000001.keys had 3 rows .* now it has 4"):
        live_rows(TASK, [Said(3, b"\xe0")], 4)


def test_dead_rows_are_counted_by_cause_and_summed_over_ranges() -> None:
    liveness = np.array([0, 2, 2, 5], np.uint8)
    lengths = np.array([10, 2**32 - 1, 7, 1], np.uint32)
    dropped = count_dropped(liveness, lengths, {2: Cause.SUPERSEDED, 3: Cause.EXPIRED})
    assert dropped == {Cause.SUPERSEDED: (2, 2**32 + 6)}
    more = {Cause.SUPERSEDED: (1, 1), Cause.EXPIRED: (4, 40)}
    total = add_up_dropped([Said(0, b"", dropped), Said(0, b"", more)])
    assert total == {Cause.SUPERSEDED: (3, 2**32 + 7), Cause.EXPIRED: (4, 40)}
