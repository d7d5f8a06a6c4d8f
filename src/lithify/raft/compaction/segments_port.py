"""A group's segments as the kernel sees them: a manifest that is read off file names.

A group has no manifest file. Which segments it has is told by the names in its directory, and
which of their entries count by its newest snapshot. `NamedLog` presents both to a run as
`compaction/run/log_port.py` wants them:

    manifest    a value made of the group's segments when the run begins. Of a segment of which
                only a part counts, that part
    horizon     held by the snapshot: what is committed there is never overwritten; and by the
                newest segment, which may be appended to
    dead sets   none: readers know the live indexes from the snapshot
    journal     none: the name of a target lists its sources
    pin         nothing to do: only the worker's thread changes these files, one job at a time
    sweep       removes the files of segments that the group does not refer to any more
    publish     targets take the names of their sources (`raft/storage/merge_links.py`)
    reclaim     nothing to delete: the bytes of a source are freed when a link takes its name. The
                links go later (`merge_links.purge_links`)

The group's thread drops its references to dead segments before a run begins (`take`), and takes in
what the run has published after it (`published`). Meanwhile old references lead to the merged file,
by the old names. A read that was planned before finds a dead index gone, as it is.

Order matters at one place: a dead segment that lies between the sources of a merge must be gone,
durably, before the merge takes place. Its number is higher than that of the target, so after a
crash it would hide what the target has of its neighbours. The sweep comes first.
"""

from __future__ import annotations

from contextlib import nullcontext, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from lithify.compaction.live_set.rule import GivenLiveSet, measure_exactly
from lithify.compaction.planning.plan import SegmentStats
from lithify.errors import PlanStale
from lithify.events import OrphanRemoved, Reclaimed
from lithify.liveset import LiveSet
from lithify.log.manifest import Manifest, Retired, SegmentRef
from lithify.log.reader import OpenSegment
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

    from lithify.compaction.live_set.rule import LiveSetQuestion, SegmentJudgement
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
    """The segments that may be judged: those up to the horizon, but never the newest."""
    return [span for span in spans[:-1] if span.last <= horizon]


def segment_stats(spans: Sequence[IndexSpan], state: LiveState) -> list[SegmentStats]:
    """What is live in each segment, as far as it is known without reading.

    Bytes are counted as if all entries of a segment were of one size.
    """
    stats = []
    for span in spans:
        ref = span.ref
        live = min(state.live.count_in(span.first, span.last + 1), ref.entries)
        size = ref.frame_bytes * live // ref.entries
        first, last = span.first, span.last
        made = SegmentStats(span.number, first, last, ref.entries, ref.frame_bytes, live, size)
        stats.append(made)
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
        """Nothing asks for it: a group has no capacity."""
        self.state = NO_SNAPSHOT
        self.damaged: Container[str] = ()
        self.half_published = False
        """May a publish have been interrupted? Then `tidy` comes before anything else."""
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
        """What the next run is about: the segments, and those that the group has just dropped.

        The horizon is the one that these were dropped by: holds that are released since bind this
        run. Segments with the names of `damaged` files are left alone until they are repaired.
        """
        self._taken, self._dropped, self._horizon = spans, dropped, horizon
        self.state, self.damaged = state, damaged

    def published(self) -> tuple[list[str], list[SegmentRef]]:
        """(Names that lead to a lower segment now, segments that were written anew) since asked."""
        gone, refs = self._gone, self._refs
        self._gone, self._refs = [], []
        return gone, refs

    # --- a run ----------------------------------------------------------------------------------

    def begin(self) -> None:
        """Make the manifest of what was taken; the first step of a run, and of a dry run."""
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
        """A segment of the run, and what counts of it."""
        return self._spans[number]

    def live_in(self, number: int) -> LiveSet:
        """The live indexes of a segment."""
        span = self._spans[number]
        return self.state.live.slice(span.first, span.last + 1)

    def show_position(self, position: int) -> str:
        """An index is written as it is."""
        return str(position)

    def pin(self, owner: str) -> AbstractContextManager[object]:  # noqa: ARG002  see the module
        """Nothing else changes these files while a run goes on."""
        return nullcontext()

    def settle(self) -> None:
        """Finish what counts of an interrupted publish, and take back the rest."""
        merge_links.recover(self._fs, self.directory)

    def sweep(self) -> list[OrphanRemoved]:
        """Remove the files of segments that the group does not refer to any more.

        Those are the dead ones of phase 1, those of which everything was overwritten, and what
        earlier attempts have left. Only numbers below the newest segment's: higher ones may be
        about to be written.
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
        """Let the targets that the edit brings in take the places of their sources."""
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
        """What a plan drops has been dropped by the group before, and swept; see the module."""
        left = {segment.id for segment in changed.segments}
        for target in changed.segments:
            left.update(parse_compacting(target.name) or ())
        known = {span.number for span in self._taken}
        for segment in self.manifest.segments:
            if segment.id not in left and segment.id in known:
                raise PlanStale(f"{segment.name} is dead, and the group still refers to it")

    def reclaim(self, pace: Callable[[int], None]) -> Reclaimed:  # noqa: ARG002  nothing to delete
        """What the publishes of this run have freed."""
        retired = self.manifest.retired
        self.manifest = replace(self.manifest, retired=())
        return Reclaimed(self.directory, len(retired), sum(each.file_bytes for each in retired))


def _in_place(target: SegmentRef) -> SegmentRef:
    """A target under the name of its lowest source."""
    return replace(target, name=segment_name(target.id))


class LiveIndexRule:
    """The rule of a group: live is what its newest snapshot needs.

    How many entries are live is known; how many bytes is not, and to find it out is to read the
    segment. Bytes are estimated where they cannot change the plan of policy `neighbours`: the
    segment is sparse by its entries, and as many of these segments as may be merged fit into one,
    were they wholly live.
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
                fits and 2 * entries < segment.entries
            )
            if 0 < entries < segment.entries and not estimated:
                return measure_exactly(question, self._log.span(segment.id).ref, live)
            return entries, segment.frame_bytes * entries // segment.entries

        judgements = GivenLiveSet(self._log.state.live, measure).judge(question)
        for segment, judgement in zip(question.segments, judgements, strict=True):
            busy = segment.name in self._log.damaged and judgement.live_entries > 0
            yield replace(judgement, busy=True) if busy else judgement

    def facts(self) -> Mapping[str, Any]:
        """There are none."""
        return {}


def lost_entries(
    fs: FileSystem, directory: str, group: str, ref: SegmentRef, live: LiveSet
) -> EntriesLost:
    """Name the lowest live index that a segment does not have."""
    segment = OpenSegment(fs, directory, ref)
    left = live
    with segment.file:
        first = ref.first_position - 1
        for frames in scan_frames(segment.file, SEGMENT_HEADER_BYTES, segment.frames_end, first):
            left -= LiveSet.from_iterable(frames.positions.tolist())
    return EntriesLost(group, left.first or 0, f"it is live and not in {ref.name}")


def tidy(
    fs: FileSystem, directory: str, spans: Sequence[IndexSpan]
) -> tuple[list[str], list[SegmentRef]]:
    """Finish or take back merges whose publish failed earlier in this process.

    (Names that lead to a lower segment now, segments that were written anew.)
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
