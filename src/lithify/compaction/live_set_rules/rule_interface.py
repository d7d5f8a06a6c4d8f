"""The live set's rule: what a store contributes to compaction.

A `LiveSetRule` is asked about sealed segments, in position order. For each it returns the live
positions, and the live slots of partly live entries. Everything else (horizon, plan, copying,
publishing, deleting) is in the kernel. Expensive work goes through the question's `jobs`, each task
with its share of the `budget`.

Dropping a tombstone needs proof that no older value of its key remains in a kept segment. Only the
rule knows keys, so it keeps the tombstone unless it has that proof.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from lithify.compaction.reports.report import Cause
from lithify.compaction.rewrite.copy_frames import measure_live
from lithify.log.dead_set.dead_set import Parts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from lithify.compaction.limits.budget import Budget
    from lithify.compaction.tasks.jobs import Check, Jobs, Progress
    from lithify.fs import FileSystem
    from lithify.live_set import LiveSet
    from lithify.log.manifest import SegmentRef

    Measure = Callable[["LiveSetQuestion", SegmentRef, LiveSet], tuple[int, int]]
    """(entries, bytes of their frames) of a segment whose positions are in a live set."""

__all__ = ["GivenLiveSet", "LiveSetQuestion", "LiveSetRule", "SegmentJudgement", "measure_exactly"]


@dataclass(frozen=True, slots=True)
class LiveSetQuestion:
    """The input of a rule. The files are pinned until the rule has returned."""

    fs: FileSystem
    directory: str
    log_id: bytes
    segments: Sequence[SegmentRef]
    """Sealed, in position order, all at or below the horizon, each with its current dead set."""
    horizon: int
    as_of_ms: int
    """The time used for expiry."""
    budget: Budget
    """The budget of the whole question; each task gets a share."""
    jobs: Jobs
    check: Check
    """Must be called regularly; raises to stop the run."""
    progress: Progress
    before_read: Callable[[int], None]
    """Must be called with the size of each read outside of jobs; may wait or raise."""

    @property
    def memory_bytes(self) -> int:
        """Memory limit of the rule and its tasks together."""
        return self.budget.memory_bytes


@dataclass(frozen=True, slots=True)
class SegmentJudgement:
    """The live part of one segment."""

    live: LiveSet
    """May include positions at which the segment has no entry."""
    live_entries: int
    live_bytes: int
    """Bytes of wholly live frames, plus the live share of the others."""
    dropped: Mapping[Cause, tuple[int, int]] = field(default_factory=dict)
    """(entries or messages, bytes) that became dead by this judgement, by cause."""
    parts: Parts = field(default_factory=Parts.empty)
    """The partly live entries."""
    messages: tuple[int, int] = (0, 0)
    """(all, live) messages of the segment, where entries have several messages."""
    busy: bool = False
    """The segment is damaged and awaits repair: no plan may include it."""


class LiveSetRule(Protocol):
    """Decides what is live."""

    def judge(self, question: LiveSetQuestion) -> Iterator[SegmentJudgement]:
        """Yield one judgement for each segment of the question, in its order."""

    def facts(self) -> Mapping[str, Any]:
        """The store's facts about the judged log, for the manifest's `state`.

        Called after all judgements; JSON values. They are published together with the judgements. A
        run whose facts differ from the manifest's publishes, so equal judgements must give equal
        facts.
        """


def measure_exactly(
    question: LiveSetQuestion, segment: SegmentRef, live: LiveSet
) -> tuple[int, int]:
    """Read the headers of the blocks that hold live positions."""
    return measure_live(question.fs, question.directory, segment, live, question.before_read)


@dataclass(frozen=True, slots=True)
class GivenLiveSet:
    """Keeps the positions that the store names: the indexes that a state machine still needs."""

    live: LiveSet
    measure: Measure = measure_exactly

    def judge(self, question: LiveSetQuestion) -> Iterator[SegmentJudgement]:
        """Keep exactly the given positions."""
        for segment in question.segments:
            live = self.live.slice(segment.first_position, segment.last_position + 1)
            entries, size = self.measure(question, segment, live)
            before_entries, before_bytes = segment.live_entries, segment.live_bytes
            gone = before_entries - entries, before_bytes - size
            yield SegmentJudgement(live, entries, size, {Cause.UNREFERENCED: gone})

    def facts(self) -> Mapping[str, Any]:
        """No facts."""
        return {}
