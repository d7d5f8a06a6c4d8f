"""The compaction rule of a blob store: which records are live, and the index of a rewrite.

1. **index**: build missing key indexes, one task per segment.
2. **validity**: judge ranges of buckets over all key indexes, one task per range; each returns one
   bit per row.
3. **dead sets**: convert the bits into live positions and counts, one task per segment.

Each step is a job of the `Jobs` of the run. Above the horizon only index rows are read: the newest
record of a blob may be there.

Records are judged as of the start of the run. A write during the run cannot revive a record that is
judged dead: an expired or deleted blob accepts no more records, and a record that is not the newest
never becomes the newest.

`BlobRewriting` builds the key index of a rewritten segment. Called by `store_compaction.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from lithify.blobs.build_key_index import open_index, put_index, run_index
from lithify.blobs.index_rows import join_rows
from lithify.blobs.purge_bounds import NOTHING, PurgedTombstones
from lithify.blobs.record_fates import ValidityTerms
from lithify.blobs.validity_tasks import (
    JUDGED_COLUMNS,
    ROW_BYTES,
    LiveRecordsTask,
    ValidityTask,
    read_part,
    run_live_records,
    run_validity,
)
from lithify.compaction.live_set_rules.by_key import (
    add_up_dropped,
    by_segment,
    in_order,
    make_indexes,
    plan_ranges,
    run_job,
)
from lithify.compaction.live_set_rules.rule_interface import SegmentJudgement
from lithify.compaction.tasks.find_or_build_key_index import IndexTask, has_index, index_rows
from lithify.compaction.tasks.jobs import no_check
from lithify.errors import Corrupt, InvalidInput, UnsupportedVersion
from lithify.log.key_index.key_index import BUCKETS, COLUMNS, KeyRows
from lithify.positions import POSITION_MAX

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from lithify.blobs.validity_tasks import LiveRecords, ValidRows
    from lithify.compaction.limits.budget import Allowance
    from lithify.compaction.live_set_rules.rule_interface import LiveSetQuestion
    from lithify.compaction.rewrite.rewrite import Copied
    from lithify.fs import FileSystem
    from lithify.log.dead_set.dead_set import Parts
    from lithify.log.manifest import SegmentRef
    from lithify.log.segments.scan import Frames

__all__ = ["BlobRewriting", "BlobRule", "RecordsAbove", "no_replicas"]

_BUCKET_SHIFT = np.uint64(56)


def no_replicas() -> None:
    """The default of `replicas_passed`, for a store without replicas."""


@dataclass(frozen=True, slots=True)
class RecordsAbove:
    """The records of the store above a horizon."""

    segments: tuple[SegmentRef, ...]
    """Sealed segments."""
    recent: KeyRows
    """The rows of the active segment."""


def _nothing_purged() -> PurgedTombstones:
    return NOTHING


@dataclass(slots=True)
class BlobRule:
    """The rule of one store."""

    deleted_retention_ms: Callable[[], int]
    above: Callable[[int, int], RecordsAbove]
    """Called with the horizon and the judging time. From then on no operation may happen before
    that time."""
    replicas_passed: Callable[[], int | None] = no_replicas
    """The position up to which every replica has read; None if there are no replicas."""
    purged_before: Callable[[], PurgedTombstones] = _nothing_purged
    """The purged deletes of earlier runs."""
    _purged: PurgedTombstones = NOTHING

    def facts(self) -> Mapping[str, Any]:
        """The purged deletes, for the manifest's state."""
        return self._purged.to_state()

    def judge(self, question: LiveSetQuestion) -> Iterator[SegmentJudgement]:
        """See `Rule`."""
        self._purged = self.purged_before()
        if not question.segments:
            return
        terms = ValidityTerms(question.as_of_ms, question.as_of_ms - self.deleted_retention_ms())
        above = self.above(question.horizon, question.as_of_ms)
        indexes = [_index_task(question, segment) for segment in question.segments]
        higher = [_index_task(question, segment) for segment in above.segments]
        missing = [task for task in (*indexes, *higher) if not has_index(task)]
        make_indexes(question, missing, run_index)
        rows_above = _rows_above(higher, above.recent)
        found = _validity(question, indexes, rows_above, terms, self._passed())
        dropped = [
            (segment.last_position, max(each.purged_ms for each in valid))
            for segment, valid in zip(question.segments, found, strict=True)
            if any(each.purged_ms >= 0 for each in valid)
        ]
        if dropped:
            self._purged = self._purged.with_dropped(
                max(position for position, _ in dropped), max(time_ms for _, time_ms in dropped)
            )
        tasks = [LiveRecordsTask(index, each) for index, each in zip(indexes, found, strict=True)]
        weights = [ROW_BYTES * sum(each.rows for each in task.valid) for task in tasks]
        results = in_order(run_job(question, "dead sets", run_live_records, tasks, weights))
        for records, valid in zip(results, found, strict=True):
            yield _judgement(records, valid)

    def _passed(self) -> int:
        passed = self.replicas_passed()
        return POSITION_MAX if passed is None else passed


def _index_task(question: LiveSetQuestion, segment: SegmentRef) -> IndexTask:
    share = question.budget.share(question.jobs.slots)
    return IndexTask(question.fs, question.directory, segment, question.log_id, budget=share)


def _rows_above(higher: Sequence[IndexTask], recent: KeyRows) -> KeyRows:
    """The live rows above the horizon; the rows of a blob are in the order of positions."""
    parts = [recent]
    for task in reversed(higher):
        rows, dead = read_part(task, 0, BUCKETS)
        parts.insert(0, KeyRows(**{name: getattr(rows, name)[~dead] for name in JUDGED_COLUMNS}))
    return KeyRows(
        **{name: np.concatenate([getattr(p, name) for p in parts]) for name in JUDGED_COLUMNS}
    )


def _validity(
    question: LiveSetQuestion,
    indexes: Sequence[IndexTask],
    above: KeyRows,
    terms: ValidityTerms,
    passed: int,
) -> list[tuple[ValidRows, ...]]:
    """The results of all ranges, per segment."""
    rows = len(above) + sum(map(index_rows, indexes))
    buckets = above.hash_high >> _BUCKET_SHIFT
    tasks = []
    for first, stop in plan_ranges(rows, question.jobs.slots, question.memory_bytes, ROW_BYTES):
        inside = (buckets >= first) & (buckets < stop)
        part = KeyRows(**{name: getattr(above, name)[inside] for name in JUDGED_COLUMNS})
        tasks.append(ValidityTask(tuple(indexes), first, stop, terms, part, passed))
    weights = [ROW_BYTES * rows * (each.stop - each.first) // BUCKETS for each in tasks]
    return by_segment(in_order(run_job(question, "validity", run_validity, tasks, weights)))


def _judgement(records: LiveRecords, found: Sequence[ValidRows]) -> SegmentJudgement:
    dropped = add_up_dropped(found)
    return SegmentJudgement(records.live, records.live_entries, records.live_bytes, dropped)


@dataclass(frozen=True, slots=True)
class BlobRewriting:
    """Copies records unchanged and builds the key index of the target."""

    log_id: bytes

    def edit(self, frames: Frames, parts: Parts) -> Frames:  # noqa: ARG002  (the protocol's names)
        """Never called: each entry of a blob store holds one record."""
        raise InvalidInput(f"the entry at {parts.positions[0]} of a blob store is partly live")

    def finish(
        self,
        fs: FileSystem,
        directory: str,
        sources: Sequence[SegmentRef],
        target: SegmentRef,
        copied: Copied,
        allowance: Allowance,
    ) -> None:
        """Build the key index of a durable target from those of its sources."""
        task = IndexTask(fs, directory, target, self.log_id, budget=allowance.budget)
        try:
            tasks = [IndexTask(fs, directory, source, self.log_id) for source in sources]
            rows = join_rows([_moved(each, copied, allowance) for each in tasks])
        except (Corrupt, UnsupportedVersion):
            run_index(task, no_check)
            return
        if int(rows.slots.sum()) == target.entries:
            put_index(task, rows)
        else:
            run_index(task, no_check)


def _moved(task: IndexTask, copied: Copied, allowance: Allowance) -> KeyRows:
    """The copied rows of a source, in the order of positions, with their new offsets."""
    with open_index(task) as index:
        rows = index.read(before_read=allowance.read)
    places = np.searchsorted(copied.positions, rows.position)
    places[places == len(copied.positions)] = 0
    there = np.flatnonzero(copied.positions[places] == rows.position)
    order = there[np.argsort(rows.position[there])]
    moved = KeyRows(**{name: getattr(rows, name)[order] for name in COLUMNS})
    moved.group = copied.offsets[places[order]].astype(COLUMNS["group"])
    return moved
