"""The live set's rule: the one thing a store brings to compaction.

A `Rule` is asked about sealed segments, in position order, and says for each which of its
positions are live. Everything else (horizon, plan, copying, publishing, deleting) is the kernel's.

Dropping a tombstone needs proof that no older value of its key remains in a kept segment; the
rule, which alone knows keys, gives that proof by keeping the tombstone otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from lithify.compaction.report import Cause
from lithify.compaction.rewrite import measure_live

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from lithify.fs import FileSystem
    from lithify.liveset import LiveSet
    from lithify.log.manifest import SegmentRef

__all__ = ["GivenLiveSet", "Judgement", "Question", "Rule"]


@dataclass(frozen=True, slots=True)
class Question:
    """What a rule is asked. The files are pinned until it has answered."""

    fs: FileSystem
    directory: str
    segments: Sequence[SegmentRef]
    """Sealed, in position order, all at or below the horizon, each with the dead set so far."""
    horizon: int
    as_of_ms: int
    """The time to judge by."""
    memory_bytes: int
    """What the rule may hold at a time."""
    before_read: Callable[[int], None]
    """To be called with the number of bytes before each read of a segment; it may wait or raise."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """What is live in one segment."""

    live: LiveSet
    """Positions at which the segment has no entry may be in it."""
    live_entries: int
    live_bytes: int
    dropped: Mapping[Cause, tuple[int, int]] = field(default_factory=dict)
    """(entries, bytes) that are dead since this judgement, by cause."""


class Rule(Protocol):
    """Decides what is live."""

    def judge(self, question: Question) -> Iterator[Judgement]:
        """One judgement for each segment of the question, in its order."""


@dataclass(frozen=True, slots=True)
class GivenLiveSet:
    """Live is what somebody names: the indexes a state machine still needs."""

    live: LiveSet

    def judge(self, question: Question) -> Iterator[Judgement]:
        """Keep exactly the named positions."""
        for segment in question.segments:
            live = self.live.slice(segment.first_position, segment.last_position + 1)
            entries, size = measure_live(
                question.fs, question.directory, segment, live, question.before_read
            )
            before_entries, before_bytes = segment.live_entries, segment.live_bytes
            gone = before_entries - entries, before_bytes - size
            yield Judgement(live, entries, size, {Cause.UNREFERENCED: gone})
