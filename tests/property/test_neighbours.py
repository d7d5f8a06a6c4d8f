"""The policy `neighbours` against an oracle: the planner that Raft groups had of their own."""

from __future__ import annotations

from random import Random

from lithify.compaction.plan import SegmentStats
from lithify.compaction.policies import Limits, plan_neighbours
from lithify.log.manifest import SegmentRef
from lithify.raft.compaction import SOURCES_MAX, Measured, plan_merges
from lithify.raft.names import segment_name
from lithify.raft.segment import SegmentLimits
from lithify.raft.segments import Span

LOGS = 10_000


def test_the_groups_are_those_of_the_planner_that_raft_had() -> None:
    grouped = alone = 0
    for seed in range(LOGS):
        rng = Random(seed)
        segments = random_log(rng)
        limits = SegmentLimits(rng.choice([3, 12, 30, 100]), rng.choice([50, 300, 1000, 10**6]))
        kernel = Limits(limits.frame_bytes_max, limits.entries_max, sources_max=SOURCES_MAX)
        found = [list(group.sources) for group in plan_neighbours(segments, kernel).groups]
        measured = [Measured(span_of(s), s.live_entries, s.live_bytes) for s in segments]
        assert found == [merge.numbers for merge in plan_merges(measured, limits)], f"seed {seed}"
        grouped += sum(len(group) > 1 for group in found)
        alone += sum(len(group) == 1 for group in found)
    assert min(grouped, alone) > LOGS / 10


def random_log(rng: Random) -> list[SegmentStats]:
    segments, position = [], 1
    for number in range(1, rng.randrange(25)):
        entries = rng.randrange(1, 20)
        live = rng.choice([0, entries, rng.randrange(entries + 1), rng.randrange(1 + entries // 3)])
        sizes = [rng.randrange(1, 40) for _ in range(entries)]
        covered = entries + rng.choice([0, 0, 7])
        segments.append(
            SegmentStats(
                id=number,
                first_position=position,
                last_position=position + covered - 1,
                entries=entries,
                bytes=sum(sizes),
                live_entries=live,
                live_bytes=sum(sizes[:live]),
            )
        )
        position += covered
    return segments


def span_of(stats: SegmentStats) -> Span:
    name, first, last = segment_name(stats.id), stats.first_position, stats.last_position
    ref = SegmentRef(stats.id, name, first, last, stats.entries, stats.bytes, sealed=True)
    return Span(ref, first, last)
