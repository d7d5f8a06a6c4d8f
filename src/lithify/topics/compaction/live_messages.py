"""The live set of a topic: the newest message of each key. Implements the rule for compaction.

1. **index**: build missing key indexes, one task per segment.
2. **survivors**: find the live rows of all key indexes, one task per range of buckets. A task
   returns one bit per row.
3. **dead sets**: turn bits into a dead set and counts, one task per segment.

Each step is a job of the given `Jobs`, in this process or on Spark. The calling process has one bit
per message and one dead set at a time in memory, never keys or payloads.

A run also stores three facts in the manifest: the last retained message, which answers
GetLastMessageId; the number of messages in the view; and the watermarks of unfinished chunked
messages (`unfinished_chunks.py`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from lithify.compaction.live_set_rules.by_key import (
    add_up_dropped,
    by_segment,
    in_order,
    make_indexes,
    plan_ranges,
    run_job,
)
from lithify.compaction.live_set_rules.rule_interface import SegmentJudgement
from lithify.compaction.reports.report import Cause
from lithify.compaction.tasks.find_or_build_key_index import (
    IndexTask,
    has_index,
    index_facts,
    index_rows,
)
from lithify.log.key_index.key_index import BUCKETS
from lithify.positions import NO_POSITION
from lithify.topics.compaction.build_key_index import run_index
from lithify.topics.compaction.dead_sets import DeadSetTask, run_dead_set
from lithify.topics.compaction.newest_per_key import (
    ROW_BYTES,
    LivenessLimits,
    SurvivorsTask,
    run_survivors,
)
from lithify.topics.compaction.unfinished_chunks import given_up_through, with_mark, without_used

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from lithify.compaction.live_set_rules.rule_interface import LiveSetQuestion
    from lithify.log.key_index.key_index import IndexFacts
    from lithify.log.manifest import SegmentRef
    from lithify.topics.compaction.dead_sets import LiveRows
    from lithify.topics.compaction.newest_per_key import Survivors
    from lithify.topics.compaction.unfinished_chunks import Mark
    from lithify.topics.definitions.compaction_settings import TopicCompactionSettings

__all__ = ["FACTS", "LAST_MESSAGE", "UNFINISHED", "VIEW_MESSAGES", "TopicRule"]

LAST_MESSAGE = "last_message"
"""Key in the manifest's state: [position, slot] of the view's last message, or null."""

VIEW_MESSAGES = "view_messages"

UNFINISHED = "unfinished"
"""Key in the manifest's state: [end, time_ms] of each watermark."""

FACTS = frozenset({LAST_MESSAGE, VIEW_MESSAGES, UNFINISHED})
"""All keys; deleted with the view."""

SURVIVOR_WEIGHT, DEAD_SET_WEIGHT = 8, 4
"""Weight of a row. Below the weight at which Spark pays off, 8 and 16 million rows, these two steps
are faster in this process, at 30 ns per row, than on Spark."""

TIME_MAX = 2**63 - 1
"""The highest publish time; later ones saturate to it (`key_index_kernels.py`)."""


@dataclass(slots=True)
class TopicRule:
    """The rule of one topic."""

    settings: Callable[[], TopicCompactionSettings]
    judged_before: Callable[[], int]
    """The horizon of the last run; messages above it are new."""
    marks: Callable[[], Sequence[Mark]] = tuple
    """The watermarks of the last run."""
    log_end: Callable[[], int] = lambda: NO_POSITION
    """The log's last position, which may be above the horizon."""
    _last: tuple[int, int] | None = None
    _messages: int = 0
    _marks: list[Mark] = field(default_factory=list)

    def facts(self) -> Mapping[str, Any]:
        """The facts for the manifest; valid after `judge` is exhausted."""
        last = None if self._last is None else list(self._last)
        return {LAST_MESSAGE: last, VIEW_MESSAGES: self._messages, UNFINISHED: self._marks}

    def judge(self, question: LiveSetQuestion) -> Iterator[SegmentJudgement]:
        """See `Rule`."""
        self._last, self._messages, self._marks = None, 0, []
        if not question.segments:
            return
        settings = self.settings()
        # The segment at the horizon may no longer be in the view.
        horizon = max(self.judged_before(), question.segments[-1].last_position)
        marks = with_mark(self.marks(), self.log_end(), question.as_of_ms)
        judging = LivenessLimits(
            by_event_time=settings.by_event_time,
            keep_keyless=settings.keep_keyless,
            tombstones_until_ms=_tombstones_until_ms(settings, question.as_of_ms),
            keys_until_ms=question.as_of_ms - settings.key_ttl_ms if settings.key_ttl_ms else -1,
            given_up_through=given_up_through(marks, horizon),
        )
        indexes = [self._index_task(question, segment, judging) for segment in question.segments]
        missing = [task for task in indexes if not has_index(task)]
        make_indexes(question, missing, run_index)
        survivors = self._survivors(question, indexes, judging)
        if any(each.waiting for segment in survivors for each in segment):
            self._marks = without_used(marks, judging.given_up_through)
        tasks = [DeadSetTask(index, each) for index, each in zip(indexes, survivors, strict=True)]
        weights = [DEAD_SET_WEIGHT * sum(each.rows for each in task.survivors) for task in tasks]
        results = in_order(run_job(question, "dead sets", run_dead_set, tasks, weights))
        for task, live_rows in zip(tasks, results, strict=True):
            yield self._judgement(task, live_rows)

    @staticmethod
    def _index_task(
        question: LiveSetQuestion, segment: SegmentRef, judging: LivenessLimits
    ) -> IndexTask:
        return IndexTask(
            question.fs,
            question.directory,
            segment,
            question.log_id,
            int(judging.by_event_time),
            question.budget.share(question.jobs.slots),
        )

    @staticmethod
    def _survivors(
        question: LiveSetQuestion, indexes: Sequence[IndexTask], judging: LivenessLimits
    ) -> list[tuple[Survivors, ...]]:
        rows = sum(map(index_rows, indexes))
        tasks = [
            SurvivorsTask(
                question.fs,
                question.directory,
                question.log_id,
                tuple(question.segments),
                first,
                stop,
                judging,
                question.budget.share(question.jobs.slots),
            )
            for first, stop in plan_ranges(
                rows, question.jobs.slots, question.memory_bytes, ROW_BYTES
            )
        ]
        weights = [SURVIVOR_WEIGHT * rows * (t.stop - t.first) // BUCKETS for t in tasks]
        return by_segment(in_order(run_job(question, "survivors", run_survivors, tasks, weights)))

    def _judgement(self, task: DeadSetTask, live_rows: LiveRows) -> SegmentJudgement:
        index, survivors = task.index, task.survivors
        dropped = add_up_dropped(survivors)
        facts = index_facts(index)
        if index.segment.last_position > self.judged_before():
            rows = sum(each.rows for each in survivors)
            left_bytes = index.segment.frame_bytes - live_rows.row_bytes
            _add_reduced(facts, rows, left_bytes, dropped)
        self._messages += live_rows.live_messages
        if live_rows.last is not None:
            self._last = live_rows.last
        return SegmentJudgement(
            live_rows.live,
            live_rows.live_entries,
            live_rows.live_bytes,
            dropped,
            live_rows.parts,
            (facts.messages, live_rows.live_messages),
        )


def _tombstones_until_ms(settings: TopicCompactionSettings, as_of_ms: int) -> int:
    """Drop tombstones published at or before this time; all if they are not retained."""
    # TIME_MAX, not the current time: a producer whose clock is ahead must not keep tombstones.
    kept_ms = settings.tombstone_retention_ms
    return as_of_ms - kept_ms if kept_ms else TIME_MAX


def _add_reduced(
    facts: IndexFacts, rows: int, left_bytes: int, dropped: dict[Cause, tuple[int, int]]
) -> None:
    """Count messages without a row: those superseded within the segment, and markers.

    Only the sum of their bytes is known; it is divided by message count.
    """
    left = facts.messages - rows
    if not left:
        return
    marker_bytes = left_bytes * facts.markers // left
    messages, size = dropped.get(Cause.SUPERSEDED, (0, 0))
    size += left_bytes - marker_bytes
    dropped[Cause.SUPERSEDED] = messages + left - facts.markers, size
    if facts.markers:
        dropped[Cause.MARKER] = facts.markers, marker_bytes
