"""Presents a group's segments to the kernel: a manifest that is built from file names.

A group has no manifest file. The names in its directory say which segments it has, and its newest
snapshot which of their entries count. `NamedLog` presents both to a run as
`compaction/run/log_port.py` requires:

    manifest    a value, built from the group's segments when the run begins. Its positions are
                those that count of each segment, which may be a part
    horizon     held by the snapshot: entries up to it are committed and never overwritten. The
                newest segment is above it, because it may still be appended to
    dead sets   none: readers know the live indexes from the snapshot
    journal     none: the name of a target lists its sources
    pin         no operation: only the worker's thread changes these files, one job at a time
    sweep       deletes segment files that the group does not refer to
    publish     renames targets over their sources (`raft/storage/merge_links.py`)
    reclaim     deletes nothing: a source's bytes are freed when a link replaces its name. The
                links are deleted later (`merge_links.purge_links`)

The group's thread drops its references to dead segments before a run begins (`take`), and applies
what the run has published after it (`published`). Meanwhile old references open the merged file,
by the old names. A read that was planned before the merge finds that a dead index is gone.

One order matters: a dead segment between the sources of a merge must be deleted, durably, before
the merge is published. Its number is higher than the target's, so after a crash it would hide the
target's entries of the neighbours. The sweep comes first.
"""

from __future__ import annotations

from contextlib import nullcontext, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from lithify.compaction.live_set_rules.rule_interface import GivenLiveSet, measure_exactly
from lithify.compaction.planning.plan import SegmentStats
from lithify.compaction.policies.merge_sparse_neighbours import DENSITY_MIN
from lithify.errors import PlanStale
from lithify.events import OrphanRemoved, Reclaimed
from lithify.live_set import LiveSet
from lithify.log.manifest import Manifest, Retired, SegmentRef
from lithify.log.open_segments import OpenSegment
from lithify.log.segments.scan import scan_frames
from lithify.log.segments.segment_file import SEGMENT_HEADER_BYTES, read_footer
from lithify.raft.errors import EntriesLost
from lithify.raft.storage import merge_links
from lithify.raft.storage.file_names import parse_compacting, parse_segment, segment_name
from lithify.raft.storage.live_state import NO_SNAPSHOT
from lithify.raft.storage.segment_file import KIND, log_id_of, ref_of

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from lithify.compaction.live_set_rules.rule_interface import LiveSetQuestion, SegmentJudgement
    from lithify.compaction.policies.packing import Limits
    from lithify.fs import FileSystem
    from lithify.raft.storage.group_segments import IndexSpan
    from lithify.raft.storage.live_state import LiveState

__all__ = [
    "LiveIndexRule",
    "NamedLog",
    "compactable",
    "lost_entries",
    "segment_stats",
    "tidy",
]


def compactable(spans: Sequence[IndexSpan], horizon: int) -> list[IndexSpan]:
    """The segments that compaction may judge: those up to the horizon, never the newest."""
    return [span for span in spans[:-1] if span.last <= horizon]


def segment_stats(spans: Sequence[IndexSpan], state: LiveState) -> list[SegmentStats]:
    """The live entries of each segment, and an estimate of their bytes, without a read.

    The estimate takes all entries of a segment as equally large.
    """
    stats = []
    for span in spans:
        ref = span.ref
        live = min(state.live.count_in(span.first, span.last + 1), ref.entries)
        size = ref.frame_bytes * live // ref.entries
        first, last = span.first, span.last
        stats.append(
            SegmentStats(span.number, first, last, ref.entries, ref.frame_bytes, live, size)
        )
    return stats


class NamedLog:
    """See the module. Between `take` and `published` it belongs to the worker's thread."""

    def __init__(self, fs: FileSystem, directory: str, group: str) -> None:
        self._fs = fs
        self._group = group
        self._taken: Sequence[IndexSpan] = ()
        self._dropped: Sequence[IndexSpan] = ()
        self._horizon = 0
        self._spans: dict[int, IndexSpan] = {}
        self._gone: list[str] = []
        self._refs: list[SegmentRef] = []
        self.directory = directory
        self.active_bytes = 0
        """Unused: a group has no capacity."""
        self.state = NO_SNAPSHOT
        self.damaged: Container[str] = ()
        self.half_published = False
        """Was a publish perhaps interrupted? Then `tidy` must run before any other job."""
        active = SegmentRef(1, segment_name(1), 1)
        self.manifest = Manifest(KIND, log_id_of(group), 1, 2, (active,))

    # --- the group's thread ---------------------------------------------------------------------

    def take(
        self,
        spans: Sequence[IndexSpan],
        dropped: Sequence[IndexSpan],
        state: LiveState,
        horizon: int,
        damaged: Container[str] = (),
    ) -> None:
        """Set the input of the next run: the segments, and those the group has just dropped.

        `horizon` is the one used for these drops: a hold that was released since limits this run.
        The run skips segments whose files are `damaged`.
        """
        self._taken, self._dropped, self._horizon = spans, dropped, horizon
        self.state, self.damaged = state, damaged

    def published(self) -> tuple[list[str], list[SegmentRef]]:
        """(Names that link to a lower segment, rewritten segments) since the last call."""
        gone, refs = self._gone, self._refs
        self._gone, self._refs = [], []
        return gone, refs

    # --- a run ----------------------------------------------------------------------------------

    def begin(self) -> None:
        """Build the manifest from the input. The first step of a run, and of a dry run."""
        spans = self._taken
        judged = sorted([*spans[:-1], *self._dropped], key=lambda span: span.number)
        self._spans = {span.number: span for span in judged}
        sealed = [
            replace(
                span.ref,
                first_position=span.first,
                last_position=span.last,
                sealed=span.last <= self._horizon,
            )
            for span in judged
        ]
        number = spans[-1].number if spans else self.manifest.next_segment_id
        first = spans[-1].first if spans else self.state.snapshot_index + 1
        active = SegmentRef(number, segment_name(number), first)
        self.manifest = replace(
            self.manifest, segments=(*sealed, active), next_segment_id=number + 1, retired=()
        )

    def span(self, number: int) -> IndexSpan:
        """A segment of the run, with the indexes that count of it."""
        return self._spans[number]

    def live_in(self, number: int) -> LiveSet:
        """The live indexes of a segment."""
        span = self._spans[number]
        return self.state.live.slice(span.first, span.last + 1)

    def show_position(self, position: int) -> str:
        """The index in decimal."""
        return str(position)

    def pin(self, owner: str) -> AbstractContextManager[object]:  # noqa: ARG002  see the module
        """No operation: only the run changes these files."""
        return nullcontext()

    def settle(self) -> None:
        """Finish or roll back an interrupted publish."""
        merge_links.recover(self._fs, self.directory)

    def sweep(self) -> list[OrphanRemoved]:
        """Delete segment files that the group does not refer to.

        Those are the segments that phase 1 dropped, segments whose entries were all overwritten,
        and leftovers of failed jobs. Only below the newest segment: files with higher numbers may
        be about to be written.
        """
        removed: list[OrphanRemoved] = []
        if not self._taken:
            return removed
        known = {span.ref.name for span in self._taken}
        newest = self._taken[-1].number
        for name in self._fs.list(self.directory):
            number = parse_segment(name)
            if number is None or number >= newest or name in known:
                continue
            path = f"{self.directory}/{name}"
            with suppress(FileNotFoundError):
                if not self._fs.stat(path).is_symlink:
                    self._fs.remove(path)
                    removed.append(OrphanRemoved(self.directory, name))
        if removed:
            self._fs.sync_dir(self.directory)
        return removed

    def publish(self, edit: Callable[[Manifest], Manifest], why: str) -> Manifest:  # noqa: ARG002
        """Publish: the targets that the edit adds replace their sources on disk."""
        before = {segment.id: segment for segment in self.manifest.segments}
        changed = edit(self.manifest)
        self._check_dropped(changed)
        segments, merges = [], []
        for segment in changed.segments:
            numbers = parse_compacting(segment.name)
            if numbers is not None:
                merges.append(numbers)
            segments.append(segment if numbers is None else _in_place(segment))
        if merges:
            self.half_published = True
            merge_links.put_in_place(self._fs, self.directory, merges)
            self.half_published = False
        generation = self.manifest.generation + 1
        sources = [before[number] for numbers in merges for number in numbers]
        retired = (Retired(ref.name, ref.file_bytes, generation) for ref in sources)
        self.manifest = replace(
            changed,
            generation=generation,
            segments=tuple(segments),
            retired=(*self.manifest.retired, *retired),
        )
        self._refs += (_in_place(s) for s in changed.segments if parse_compacting(s.name))
        self._gone += (segment_name(number) for numbers in merges for number in numbers[1:])
        return self.manifest

    def _check_dropped(self, changed: Manifest) -> None:
        """Check that the group has dropped, and the sweep deleted, all that the plan drops."""
        kept = {segment.id for segment in changed.segments}
        for target in changed.segments:
            kept.update(parse_compacting(target.name) or ())
        known = {span.number for span in self._taken}
        for segment in self.manifest.segments:
            if segment.id not in kept and segment.id in known:
                raise PlanStale(f"{segment.name} is dead, and the group still refers to it")

    def reclaim(self, pace: Callable[[int], None]) -> Reclaimed:  # noqa: ARG002  nothing to delete
        """The files and bytes that the publishes of this run have freed."""
        retired = self.manifest.retired
        self.manifest = replace(self.manifest, retired=())
        return Reclaimed(self.directory, len(retired), sum(each.file_bytes for each in retired))


def _in_place(target: SegmentRef) -> SegmentRef:
    """A target, under the name of its lowest source."""
    return replace(target, name=segment_name(target.id))


class LiveIndexRule:
    """The rule of a group: the entries that its newest snapshot needs are live.

    The number of live entries is known. The number of live bytes takes a read of the segment, so it
    is estimated where it cannot change the plan of policy `neighbours`: the segment is sparse by
    its entries, and `sources_max` segments would fit into one even if all their entries were live.
    """

    def __init__(self, log: NamedLog, group: str, limits: Limits) -> None:
        self._log = log
        self._group = group
        self._limits = limits

    def judge(self, question: LiveSetQuestion) -> Iterator[SegmentJudgement]:
        """See `Rule`."""
        largest_bytes = max((segment.frame_bytes for segment in question.segments), default=0)
        fits = self._limits.sources_max * largest_bytes <= self._limits.target_bytes_max

        def measure(
            question: LiveSetQuestion, segment: SegmentRef, live: LiveSet
        ) -> tuple[int, int]:
            entries = len(live)
            if entries > segment.entries:
                ref = self._log.span(segment.id).ref
                raise lost_entries(question.fs, question.directory, self._group, ref, live)
            estimated = segment.name in self._log.damaged or (
                fits and entries < DENSITY_MIN * segment.entries
            )
            if 0 < entries < segment.entries and not estimated:
                return measure_exactly(question, self._log.span(segment.id).ref, live)
            return entries, segment.frame_bytes * entries // segment.entries

        judgements = GivenLiveSet(self._log.state.live, measure).judge(question)
        for segment, judgement in zip(question.segments, judgements, strict=True):
            busy = segment.name in self._log.damaged and judgement.live_entries > 0
            yield replace(judgement, busy=True) if busy else judgement

    def facts(self) -> Mapping[str, Any]:
        """None."""
        return {}


def lost_entries(
    fs: FileSystem, directory: str, group: str, ref: SegmentRef, live: LiveSet
) -> EntriesLost:
    """The error that names the lowest live index missing in a segment."""
    segment = OpenSegment(fs, directory, ref)
    missing = live
    with segment.file:
        first = ref.first_position - 1
        for frames in scan_frames(segment.file, SEGMENT_HEADER_BYTES, segment.frames_end, first):
            missing -= LiveSet.from_iterable(frames.positions.tolist())
    return EntriesLost(group, missing.first or 0, f"it is live and not in {ref.name}")


def tidy(
    fs: FileSystem, directory: str, spans: Sequence[IndexSpan]
) -> tuple[list[str], list[SegmentRef]]:
    """Finish or roll back merges whose publish failed earlier in this process.

    Returns (names that link to a lower segment, rewritten segments).
    """
    merge_links.recover(fs, directory)
    gone, refs = [], []
    for span in spans[:-1]:
        path = f"{directory}/{span.ref.name}"
        if fs.stat(path).is_symlink:
            gone.append(span.ref.name)
            continue
        with fs.open_read(path) as file:
            ref = ref_of(span.number, read_footer(file))
        if ref != span.ref:
            refs.append(ref)
    return gone, refs
