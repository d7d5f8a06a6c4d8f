"""Asks the rule about the candidates of a run and writes its judgements as dead sets.

1. The rule judges the candidates, segment by segment.
2. The dead set of each segment is written to a file at once, so that memory holds the judgement of
   one segment only. All files are made durable together, before the journal.
3. Counts for the plan and causes for the report are summed up. The store's facts come last.

Invariant: dead entries stay dead. A rule that revives one is refused, because readers may already
have skipped it. A crash leaves dead sets that no manifest names; the next open removes them.

Called by `compaction/run/compactor.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from lithify.checksum import crc32c
from lithify.compaction.planning.plan import SegmentStats
from lithify.errors import InvalidInput
from lithify.live_set import LiveSet
from lithify.log.dead_set.dead_set import DeadSet
from lithify.log.file_names import dead_set_name
from lithify.log.manifest import DeadRef
from lithify.log.open_segments import read_dead_set

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from lithify.compaction.live_set_rules.rule_interface import (
        LiveSetQuestion,
        LiveSetRule,
        SegmentJudgement,
    )
    from lithify.compaction.reports.report import Cause
    from lithify.log.manifest import SegmentRef

__all__ = ["JudgedSegments", "judge_segments", "segment_stats"]


@dataclass(frozen=True, slots=True)
class JudgedSegments:
    """The judgements of all candidates."""

    segments: tuple[SegmentRef, ...]
    """With their new dead sets."""
    stats: tuple[SegmentStats, ...]
    causes: Mapping[Cause, tuple[int, int]]
    messages: tuple[int, int]
    facts: Mapping[str, Any]


def judge_segments(
    question: LiveSetQuestion, rule: LiveSetRule, run_id: str, *, dead_sets: bool = True
) -> JudgedSegments:
    """Ask the rule, and write new dead sets under the id of the run.

    Without `dead_sets` no file is written, and the segments have the counts only.
    """
    segments: list[SegmentRef] = []
    stats: list[SegmentStats] = []
    causes: dict[Cause, tuple[int, int]] = {}
    messages = 0, 0
    for segment, judgement in _judgements(question, rule):
        question.check()
        if dead_sets:
            segments.append(_with_dead_set(question, segment, judgement, run_id))
        else:
            segments.append(_with_counts(segment, judgement))
        stats.append(_stats(segment, judgement))
        messages = messages[0] + judgement.messages[0], messages[1] + judgement.messages[1]
        for cause, (count, size) in judgement.dropped.items():
            so_far = causes.get(cause, (0, 0))
            causes[cause] = so_far[0] + count, so_far[1] + size
    return JudgedSegments(
        tuple(segments),
        tuple(stats),
        {cause: count for cause, count in causes.items() if any(count)},
        messages,
        rule.facts(),
    )


def segment_stats(question: LiveSetQuestion, rule: LiveSetRule) -> tuple[list[SegmentStats], bool]:
    """The same for a dry run, which writes nothing; also whether any entry is newly dead."""
    stats, is_new = [], False
    for segment, judgement in _judgements(question, rule):
        stats.append(_stats(segment, judgement))
        is_new = is_new or not _is_known(question, segment, judgement)
    return stats, is_new


def _is_known(question: LiveSetQuestion, segment: SegmentRef, judgement: SegmentJudgement) -> bool:
    """Is the judgement equal to the segment's current dead set?"""
    if judgement.live_entries != segment.live_entries:
        return False
    if segment.dead is None:
        return not len(judgement.parts)
    before = read_dead_set(question.fs, question.directory, segment.dead)
    return bool(judgement.parts == before.parts)


def _judgements(
    question: LiveSetQuestion, rule: LiveSetRule
) -> Iterator[tuple[SegmentRef, SegmentJudgement]]:
    return zip(question.segments, rule.judge(question), strict=True)


def _with_dead_set(
    question: LiveSetQuestion, segment: SegmentRef, judgement: SegmentJudgement, run_id: str
) -> SegmentRef:
    """The segment with a dead set file for the judgement."""
    whole = judgement.live_entries == segment.entries and not len(judgement.parts)
    if segment.dead is None and whole:
        return segment
    dead = DeadSet(_gaps(segment, judgement.live), judgement.parts)
    if segment.dead is not None:
        before = read_dead_set(question.fs, question.directory, segment.dead)
        if not dead.widens(before):
            raise InvalidInput(f"the rule brings back dead entries of {segment.name}")
        # No entry was revived, so an equal number of live entries means the same entries.
        if judgement.live_entries == segment.live_entries and dead.parts == before.parts:
            return segment
    data = dead.to_bytes()
    name = dead_set_name(segment.id, run_id)
    with question.fs.open_append(f"{question.directory}/{name}", exclusive=True) as file:
        file.write(data)
        file.begin_sync()
    ref = DeadRef(
        name,
        entries=segment.entries - judgement.live_entries,
        frame_bytes=segment.frame_bytes - judgement.live_bytes,
        file_bytes=len(data),
        crc=crc32c(data),
        parts=len(dead.parts),
    )
    return replace(segment, dead=ref)


def _with_counts(segment: SegmentRef, judgement: SegmentJudgement) -> SegmentRef:
    """The segment with the counts of its dead entries, without a file that names them."""
    entries = segment.entries - judgement.live_entries
    frame_bytes = segment.frame_bytes - judgement.live_bytes
    return replace(segment, dead=DeadRef("", entries, frame_bytes, 0, 0)) if entries else segment


def _gaps(segment: SegmentRef, live: LiveSet) -> LiveSet:
    """The positions of a segment that are not live: the gaps between the live ranges.

    Equal to a set difference, at a tenth of its cost; runs once per segment.
    """
    first, stop = segment.first_position, segment.last_position + 1
    starts, stops = live.slice(first, stop).range_arrays()
    starts, stops = np.append(first, stops), np.append(starts, stop)
    there = starts < stops
    return LiveSet.from_ranges(starts[there], stops[there])


def _stats(segment: SegmentRef, judgement: SegmentJudgement) -> SegmentStats:
    return SegmentStats(
        id=segment.id,
        first_position=segment.first_position,
        last_position=segment.last_position,
        entries=segment.entries,
        bytes=segment.frame_bytes,
        live_entries=judgement.live_entries,
        live_bytes=judgement.live_bytes,
        busy=judgement.busy,
    )
