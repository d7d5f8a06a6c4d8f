"""The policy `neighbours` against an oracle: the planner that Raft groups had of their own."""

from __future__ import annotations

from random import Random

from lithify.compaction.planning.plan import SegmentStats
from lithify.compaction.policies.built_in import Limits
from lithify.compaction.policies.merge_sparse_neighbours import plan_neighbours

LOGS = 10_000


def test_the_groups_are_those_of_the_planner_that_raft_had() -> None:
    grouped = alone = 0
    for seed in range(LOGS):
        rng = Random(seed)
        segments = random_log(rng)
        limits = Limits(
            rng.choice([50, 300, 1000, 10**6]), rng.choice([3, 12, 30, 100]), sources_max=8
        )
        found = [list(group.sources) for group in plan_neighbours(segments, limits).groups]
        assert found == merges(segments, limits), f"seed {seed}"
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


def merges(segments: list[SegmentStats], limits: Limits) -> list[list[int]]:
    """Step by step: close the open group where the next segment does not fit."""
    found: list[list[int]] = []
    group: list[SegmentStats] = []

    def fits(members: list[SegmentStats]) -> bool:
        return (
            len(members) <= limits.sources_max
            and sum(each.live_entries for each in members) <= limits.target_entries_max
            and sum(each.live_bytes for each in members) <= limits.target_bytes_max
        )

    def close() -> None:
        is_sparse = any(
            2 * each.live_entries < each.entries or 2 * each.live_bytes < each.bytes
            for each in group
        )
        if len(group) > 1 or is_sparse:
            found.append([each.id for each in group])

    for segment in segments:
        if not segment.live_entries:
            continue
        if not fits([*group, segment]):
            close()
            group = []
            if not fits([segment]):
                continue
        group.append(segment)
    close()
    return found
