"""What is live in a blob store: the rule that compaction asks, and what a rewrite adds.

1. **index**: segments without a key index get one, a task each.
2. **validity**: ranges of buckets over all key indexes, a task each; a bit a row comes back.
3. **verdict**: a task a segment turns bits into live positions and counts.

Each step is a job of the `Jobs` it is given. Of what is above the horizon only rows are looked at:
a blob's newest record may be there.

Judged is by the time the run began. What is written while it goes on cannot make anything live
again that it finds dead: a blob that is expired or gone takes no record any more, and a record that
is not the newest never becomes it.

`BlobRewriting` makes the key index of a rewritten segment. Called by `compaction.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from lithify.blobs.indexing import IndexTask, has_index, open_index, run_index
from lithify.blobs.judging import (
    JUDGED_COLUMNS,
    ROW_BYTES,
    ValidityTask,
    VerdictTask,
    plan_ranges,
    read_part,
    run_validity,
    run_verdict,
)
from lithify.blobs.validity import Terms
from lithify.compaction.jobs import no_check
from lithify.compaction.rule import Judgement
from lithify.errors import InvalidInput
from lithify.log.keyindex import BUCKETS, KeyRows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from lithify.blobs.judging import Valid, Verdict
    from lithify.compaction.report import Cause
    from lithify.compaction.rule import Question
    from lithify.fs import FileSystem
    from lithify.log.deadset import Parts
    from lithify.log.manifest import SegmentRef
    from lithify.log.scan import Frames

__all__ = ["Above", "BlobRewriting", "BlobRule"]

_BUCKET_SHIFT = np.uint64(56)


@dataclass(frozen=True, slots=True)
class Above:
    """What the store has above a horizon."""

    segments: tuple[SegmentRef, ...]
    """Sealed."""
    recent: KeyRows
    """The rows of the active one."""


@dataclass(frozen=True, slots=True)
class BlobRule:
    """The rule of one store."""

    deleted_retention_ms: Callable[[], int]
    above: Callable[[int, int], Above]
    """Asked with the horizon and the time to judge by. Whoever answers lets no operation happen
    before that time any more."""

    def facts(self) -> Mapping[str, Any]:
        """There are none."""
        return {}

    def judge(self, question: Question) -> Iterator[Judgement]:
        """See `Rule`."""
        if not question.segments:
            return
        terms = Terms(question.as_of_ms, question.as_of_ms - self.deleted_retention_ms())
        above = self.above(question.horizon, question.as_of_ms)
        indexes = [_index_task(question, segment) for segment in question.segments]
        higher = [_index_task(question, segment) for segment in above.segments]
        _index(question, [*indexes, *higher])
        found = _validity(question, indexes, _rows_above(higher, above.recent), terms)
        tasks = [
            VerdictTask(index, tuple(each)) for index, each in zip(indexes, found, strict=True)
        ]
        verdicts: dict[int, Verdict] = {}
        following = 0
        results = question.jobs.run(
            "verdict",
            run_verdict,
            tasks,
            weights=[ROW_BYTES * sum(each.rows for each in task.valid) for task in tasks],
            check=question.check,
            progress=question.progress,
        )
        for number, verdict in results:
            verdicts[number] = verdict
            while following in verdicts:
                yield _judgement(verdicts.pop(following), found[following])
                following += 1


def _index_task(question: Question, segment: SegmentRef) -> IndexTask:
    share = question.budget.share(question.jobs.slots)
    return IndexTask(question.fs, question.directory, segment, question.log_id, share)


def _index(question: Question, indexes: Sequence[IndexTask]) -> None:
    missing = [task for task in indexes if not has_index(task)]
    results = question.jobs.run(
        "index",
        run_index,
        missing,
        weights=[task.segment.file_bytes for task in missing],
        check=question.check,
        progress=question.progress,
    )
    for _ in results:
        pass


def _rows_above(higher: Sequence[IndexTask], recent: KeyRows) -> KeyRows:
    """The live rows above the horizon; those of one blob in the order of positions."""
    parts = [recent]
    for task in reversed(higher):
        rows, dead = read_part(task, 0, BUCKETS)
        parts.insert(0, KeyRows(**{name: getattr(rows, name)[~dead] for name in JUDGED_COLUMNS}))
    return KeyRows(
        **{name: np.concatenate([getattr(p, name) for p in parts]) for name in JUDGED_COLUMNS}
    )


def _validity(
    question: Question, indexes: Sequence[IndexTask], above: KeyRows, terms: Terms
) -> list[list[Valid]]:
    """What each task says of each segment."""
    rows = len(above)
    for task in indexes:
        with open_index(task) as index:
            rows += index.rows
    buckets = above.hash_high >> _BUCKET_SHIFT
    tasks = []
    for first, stop in plan_ranges(rows, question.jobs.slots, question.memory_bytes):
        inside = (buckets >= first) & (buckets < stop)
        part = KeyRows(**{name: getattr(above, name)[inside] for name in JUDGED_COLUMNS})
        tasks.append(ValidityTask(tuple(indexes), first, stop, terms, part))
    answers: list[list[Valid]] = [[] for _ in tasks]
    results = question.jobs.run(
        "validity",
        run_validity,
        tasks,
        weights=[ROW_BYTES * rows * (each.stop - each.first) // BUCKETS for each in tasks],
        check=question.check,
        progress=question.progress,
    )
    for number, answer in results:
        answers[number] = answer
    return [[answer[number] for answer in answers] for number in range(len(indexes))]


def _judgement(verdict: Verdict, found: Sequence[Valid]) -> Judgement:
    dropped: dict[Cause, tuple[int, int]] = {}
    for each in found:
        for cause, (records, size) in each.dropped.items():
            so_far = dropped.get(cause, (0, 0))
            dropped[cause] = so_far[0] + records, so_far[1] + size
    return Judgement(verdict.live, verdict.live_entries, verdict.live_bytes, dropped)


@dataclass(frozen=True, slots=True)
class BlobRewriting:
    """Records are copied as they are; the target gets its key index at once."""

    log_id: bytes

    def edit(self, frames: Frames, parts: Parts) -> Frames:  # noqa: ARG002  (the protocol's names)
        """Never asked: the entries of a blob store hold one record each."""
        raise InvalidInput(f"the entry at {parts.positions[0]} of a blob store is partly live")

    def finish(
        self,
        fs: FileSystem,
        directory: str,
        sources: Sequence[SegmentRef],  # noqa: ARG002  (the protocol's name)
        target: SegmentRef,
    ) -> None:
        """Make the key index of a target that is durable."""
        run_index(IndexTask(fs, directory, target, self.log_id), no_check)
