"""The live set's rule: the one thing a store brings to compaction.

A `LiveSetRule` is asked about sealed segments, in position order, and says for each which of its
positions are live, and of entries that are partly live, which slots. Everything else (horizon,
plan, copying, publishing, deleting) is the kernel's. What costs time it has done by the question's
`jobs`, each task with its share of the `budget`.

Dropping a tombstone needs proof that no older value of its key remains in a kept segment; the
rule, which alone knows keys, gives that proof by keeping the tombstone otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from lithify.compaction.reports.report import Cause
from lithify.compaction.rewrite.copy_frames import measure_live
from lithify.log.deadset.dead_set import Parts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from lithify.compaction.limits.budget import Budget
    from lithify.compaction.tasks.jobs import Check, Jobs, Progress
    from lithify.fs import FileSystem
    from lithify.liveset import LiveSet
    from lithify.log.manifest import SegmentRef

    Measure = Callable[["LiveSetQuestion", SegmentRef, LiveSet], tuple[int, int]]
    """(entries, bytes of their frames) of a segment whose positions are in a set."""

__all__ = ["GivenLiveSet", "LiveSetQuestion", "LiveSetRule", "SegmentJudgement", "measure_exactly"]


@dataclass(frozen=True, slots=True)
class LiveSetQuestion:
    """What a rule is asked. The files are pinned until it has answered."""

    fs: FileSystem
    directory: str
    log_id: bytes
    segments: Sequence[SegmentRef]
    """Sealed, in position order, all at or below the horizon, each with the dead set so far."""
    horizon: int
    as_of_ms: int
    """The time to judge by."""
    budget: Budget
    """Of everything together; tasks get a share of it."""
    jobs: Jobs
    check: Check
    """To be called now and then; raises when the run is to stop."""
    progress: Progress
    before_read: Callable[[int], None]
    """To be called with the bytes of each read that no job makes; it may wait or raise."""

    @property
    def memory_bytes(self) -> int:
        """What the rule and its tasks may hold at a time."""
        return self.budget.memory_bytes


@dataclass(frozen=True, slots=True)
class SegmentJudgement:
    """What is live in one segment."""

    live: LiveSet
    """Positions at which the segment has no entry may be in it."""
    live_entries: int
    live_bytes: int
    """Of wholly live frames, and the live share of the others."""
    dropped: Mapping[Cause, tuple[int, int]] = field(default_factory=dict)
    """(entries or messages, bytes) that are dead since this judgement, by cause."""
    parts: Parts = field(default_factory=Parts.empty)
    """The live entries that are only partly so."""
    messages: tuple[int, int] = (0, 0)
    """All of the segment and the live ones, where entries have several messages."""
    busy: bool = False
    """No plan may touch the segment now: it is damaged, and waits for repair."""


class LiveSetRule(Protocol):
    """Decides what is live."""

    def judge(self, question: LiveSetQuestion) -> Iterator[SegmentJudgement]:
        """One judgement for each segment of the question, in its order."""

    def facts(self) -> Mapping[str, Any]:
        """What the manifest's `state` is to say about the log as it was just judged.

        Asked once all judgements are made; JSON values. They are published together with what was
        judged. A run whose facts differ from the manifest's has something to publish, so the same
        answer must come with the same facts.
        """


def measure_exactly(
    question: LiveSetQuestion, segment: SegmentRef, live: LiveSet
) -> tuple[int, int]:
    """Read the headers of the blocks that hold live positions."""
    return measure_live(question.fs, question.directory, segment, live, question.before_read)


@dataclass(frozen=True, slots=True)
class GivenLiveSet:
    """Live is what the store names: the indexes a state machine still needs."""

    live: LiveSet
    measure: Measure = measure_exactly

    def judge(self, question: LiveSetQuestion) -> Iterator[SegmentJudgement]:
        """Keep exactly the named positions."""
        for segment in question.segments:
            live = self.live.slice(segment.first_position, segment.last_position + 1)
            entries, size = self.measure(question, segment, live)
            before_entries, before_bytes = segment.live_entries, segment.live_bytes
            gone = before_entries - entries, before_bytes - size
            yield SegmentJudgement(live, entries, size, {Cause.UNREFERENCED: gone})

    def facts(self) -> Mapping[str, Any]:
        """There are none."""
        return {}
