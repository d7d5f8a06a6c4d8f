"""Compaction of a group's segments: dropping dead ones (phase 1), merging sparse ones (phase 3).

Only segments in the compacting section are judged: those that end at or below the snapshot. What
is committed there is never overwritten, so nobody else changes them. The newest segment is never
touched, because the segment writer may be appending to it. Of a segment of which only a part
counts, only that part is looked at.

Phase 1, `plan_drops`, oldest to newest: a segment with no live index goes. With no live index at
all this is Raft's plain truncation.

Phase 3, `plan_merges`, oldest to newest:

1. A segment joins the open group if the group's live entries still fit into one segment and it has
   at most `SOURCES_MAX` sources. Else the group is closed, and the segment begins the next one.
2. A segment whose live entries do not even fit into an empty group is skipped.
3. A group of two or more is merged: it saves a file at least. A group of one is written anew only
   if more than half of it is dead, by entries or by bytes.

Segments without live entries are in no group and separate none.

Running. `run_drops` removes the files of all segments that the group does not refer to any more.
`run_merges` copies the live frames of each group as they are, CRCs checked, to a `.compacting` file
that is named by its sources. It makes these durable and lets `merging.py` put them in place, a
round of them at a time (`rounds`), because an fsync costs the same for many as for one. Two threads
write the targets of a large round, each merge in one of them: until all are written nothing counts,
so their order does not matter. A live index that is not where it must be is `EntriesLost`, before
anything of its merge has changed. If something fails, a disk is full, then no other merge is begun,
targets that are whole are put in place, what counts already is brought to its end and the rest
taken back; `run_tidy` does the same for what even that could not, before anything else is begun.

Order of deletion: the group drops its references (`GroupSegments.replace`), then files go. A crash
in between leaves files that nobody needs and the next start removes.

`plan_*` are pure. `run_*` belong to the log worker's thread, whatever threads they have meanwhile;
`compactor.py` calls them.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

from lithify.compaction.copying import Room, copy_live, measure_live
from lithify.liveset import LiveSet
from lithify.log.reader import OpenSegment
from lithify.log.scan import scan_frames
from lithify.log.segment import SEGMENT_HEADER_BYTES, SegmentHeader, SegmentWriter, read_footer
from lithify.raft import merging
from lithify.raft.errors import EntriesLost
from lithify.raft.names import compacting_name, parse_segment
from lithify.raft.segment import MERGED_KIND, log_id_of, ref_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from lithify.compaction.budget import Allowance
    from lithify.fs import File, FileSystem
    from lithify.log.manifest import SegmentRef
    from lithify.raft.live_state import LiveState
    from lithify.raft.segment import SegmentLimits
    from lithify.raft.segments import Span

__all__ = [
    "SOURCES_MAX",
    "Measured",
    "Merge",
    "Merged",
    "compactable",
    "live_in",
    "plan_drops",
    "plan_merges",
    "rounds",
    "run_drops",
    "run_measure",
    "run_merges",
    "run_tidy",
]

SOURCES_MAX = 8
"""The target's name has the numbers of all sources: 8 make 146 characters, 255 may be."""

ROUND_BYTES = 512 * 2**20
"""That are on disk twice meanwhile."""
ROUND_MERGES = 128
"""Files that are open meanwhile."""

WRITERS = 2
"""Threads of a round. Most of its time goes into reads, writes and CRCs, which need no interpreter
lock: two take about a fifth less time where a core is idle. More would take from who serves."""
ALONE_BYTES_MAX = 8 * 2**20
"""Live bytes of a round, about 8 ms of copying, that are not worth a second thread and its room."""


# --- planning -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Measured:
    """A segment, and how much of it is live."""

    span: Span
    live_entries: int
    live_bytes: int
    """Estimated where it decides nothing; see `run_measure`."""

    @property
    def is_sparse(self) -> bool:
        """Is more than half of it dead, by entries or by bytes?

        What was overwritten is in the file too, and dead.
        """
        ref = self.span.ref
        return 2 * self.live_entries < ref.entries or 2 * self.live_bytes < ref.frame_bytes


@dataclass(frozen=True, slots=True)
class Merge:
    """Segments that are written into one, which takes the place and the number of the lowest."""

    sources: tuple[Measured, ...]

    @property
    def numbers(self) -> list[int]:
        """Of the sources, ascending."""
        return [source.span.number for source in self.sources]

    @property
    def live_entries(self) -> int:
        """What the target will hold."""
        return sum(source.live_entries for source in self.sources)

    @property
    def live_bytes(self) -> int:
        """The bytes of their frames."""
        return sum(source.live_bytes for source in self.sources)


def compactable(spans: Sequence[Span], state: LiveState) -> list[Span]:
    """The segments that may be judged; see the module."""
    return [span for span in spans[:-1] if span.last <= state.snapshot_index]


def live_in(span: Span, state: LiveState) -> LiveSet:
    """The live indexes of a segment."""
    return state.live.slice(span.first, span.last + 1)


def plan_drops(spans: Sequence[Span], state: LiveState) -> list[Span]:
    """Phase 1: the segments that nothing needs, oldest first."""
    overlaps = state.live.overlaps
    return [span for span in compactable(spans, state) if not overlaps(span.first, span.last + 1)]


def plan_merges(segments: Sequence[Measured], limits: SegmentLimits) -> list[Merge]:
    """Phase 3: what is to be merged, of segments that may be judged, oldest first."""
    merges: list[Merge] = []
    group: list[Measured] = []
    for segment in segments:
        if not segment.live_entries:
            continue
        if not _fits([*group, segment], limits):
            _close(group, merges)
            group = []
            if not _fits([segment], limits):
                continue
        group.append(segment)
    _close(group, merges)
    return merges


def rounds(merges: Sequence[Merge]) -> Iterator[list[Merge]]:
    """The merges that are made durable together: so many bytes, so many files."""
    chosen: list[Merge] = []
    size = 0
    for merge in merges:
        if chosen and (size + merge.live_bytes > ROUND_BYTES or len(chosen) == ROUND_MERGES):
            yield chosen
            chosen, size = [], 0
        chosen.append(merge)
        size += merge.live_bytes
    if chosen:
        yield chosen


def _fits(group: Sequence[Measured], limits: SegmentLimits) -> bool:
    merge = Merge(tuple(group))
    return (
        len(group) <= SOURCES_MAX
        and merge.live_entries <= limits.entries_max
        and merge.live_bytes <= limits.frame_bytes_max
    )


def _close(group: list[Measured], merges: list[Merge]) -> None:
    if len(group) > 1 or any(segment.is_sparse for segment in group):
        merges.append(Merge(tuple(group)))


# --- running ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Merged:
    """The merges that took place, the segments they have left, and why there are no more."""

    merges: list[Merge]
    refs: list[SegmentRef]
    failure: Exception | None


def run_tidy(
    fs: FileSystem, directory: str, spans: Sequence[Span]
) -> tuple[list[str], list[SegmentRef]]:
    """Finish or take back merges that failed earlier in this process.

    (Names that lead to a lower segment now, segments that were written anew.)
    """
    merging.recover(fs, directory)
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


def run_drops(fs: FileSystem, directory: str, spans: Sequence[Span]) -> list[str]:
    """Remove the files of segments that the group does not refer to any more; their names.

    Those are the dead ones of phase 1, those of which everything was overwritten, and what earlier
    attempts have left. Only numbers below the newest segment's: higher ones may be in the making.
    """
    if not spans:
        return []
    known = {span.ref.name for span in spans}
    removed = []
    for name in fs.list(directory):
        number = parse_segment(name)
        if number is None or number >= spans[-1].number or name in known:
            continue
        path = f"{directory}/{name}"
        with suppress(FileNotFoundError):
            if not fs.stat(path).is_symlink:
                fs.remove(path)
                removed.append(name)
    if removed:
        fs.sync_dir(directory)
    return removed


def run_measure(
    fs: FileSystem,
    directory: str,
    spans: Sequence[Span],
    state: LiveState,
    limits: SegmentLimits,
    before_read: Callable[[int], None],
) -> list[Measured]:
    """How much of each segment is live.

    Entries are known; bytes are not, and to find them out is to read the segment. They are
    estimated where they decide nothing: the segment is sparse by its entries, and so many of these
    segments fit into one as may be merged, were they wholly live.
    """
    largest_bytes = max((span.ref.frame_bytes for span in spans), default=0)
    fits = SOURCES_MAX * largest_bytes <= limits.frame_bytes_max
    found = []
    for span in spans:
        ref, entries = span.ref, state.live.count_in(span.first, span.last + 1)
        size = ref.frame_bytes * entries // ref.entries
        if 0 < entries < ref.entries and not (fits and 2 * entries < ref.entries):
            _, size = measure_live(fs, directory, ref, live_in(span, state), before_read)
        found.append(Measured(span, entries, size))
    return found


def run_merges(
    fs: FileSystem,
    directory: str,
    group: str,
    merges: Sequence[Merge],
    state: LiveState,
    allowance: Allowance,
) -> Merged:
    """Write the live entries of each merge into one segment; all are put in place together."""
    targets, failure = _write_targets(fs, directory, group, merges, state, allowance)
    try:
        for target in targets:
            # The disk has begun with all of them, so the first waits for most of the work.
            target.file.fsync()
        merging.put_in_place(fs, directory, [target.merge.numbers for target in targets])
    except Exception as error:  # noqa: BLE001  (what counts already is found out below)
        failure = error
    finally:
        for target in targets:
            target.file.close()
    if failure is not None:
        # Nothing is left that the next run would trip over. What counts already does count.
        merging.recover(fs, directory)
    placed = [target for target in targets if _is_placed(fs, directory, target)]
    return Merged([each.merge for each in placed], [each.ref for each in placed], failure)


@dataclass(frozen=True, slots=True)
class _Target:
    """A `.compacting` file that has everything, and is not durable yet."""

    merge: Merge
    ref: SegmentRef
    file: File
    inode: int


def _write_targets(
    fs: FileSystem,
    directory: str,
    group: str,
    merges: Sequence[Merge],
    state: LiveState,
    allowance: Allowance,
) -> tuple[list[_Target], Exception | None]:
    """(Targets that are whole, by ascending number; why there are no more of them)."""
    # A list's iterator gives each merge to one thread only.
    left = iter(list(merges))
    targets: list[_Target] = []
    failures: list[Exception] = []

    def write() -> None:
        room = Room()
        for merge in left:
            try:
                targets.append(_write_target(fs, directory, group, merge, state, allowance, room))
            except Exception as error:  # noqa: BLE001  (what is whole is put in place all the same)
                failures.append(error)
            if failures:
                return

    alone = sum(merge.live_bytes for merge in merges) <= ALONE_BYTES_MAX
    writers = 1 if alone else WRITERS
    with ThreadPoolExecutor(writers, "lithify-merge") as pool:
        for written in [pool.submit(write) for _ in range(writers)]:
            written.result()
    targets.sort(key=lambda target: target.ref.id)
    return targets, failures[0] if failures else None


def _write_target(
    fs: FileSystem,
    directory: str,
    group: str,
    merge: Merge,
    state: LiveState,
    allowance: Allowance,
    room: Room,
) -> _Target:
    """Copy what is live into a new file."""
    numbers = merge.numbers
    lives = [live_in(source.span, state) for source in merge.sources]
    header = SegmentHeader(numbers[0], lives[0].first or 0, 0, MERGED_KIND, log_id_of(group))
    path = f"{directory}/{compacting_name(numbers)}"
    writer = SegmentWriter.create(fs, path, header)
    try:
        for source, live in zip(merge.sources, lives, strict=True):
            ref = source.span.ref
            copied, _ = copy_live(fs, directory, ref, live, len(live), writer, allowance, room=room)
            if len(copied) != len(live):
                _raise_lost(fs, directory, group, ref, live)
        rows, footer = writer.footer()
        writer.file.writev([rows, footer.to_bytes()])
        writer.file.begin_sync()
        return _Target(merge, ref_of(numbers[0], footer), writer.file, fs.stat(path).inode)
    except BaseException:
        writer.file.close()
        raise


def _is_placed(fs: FileSystem, directory: str, target: _Target) -> bool:
    """Has the target the name of its lowest source?"""
    return fs.stat(f"{directory}/{target.ref.name}").inode == target.inode


def _raise_lost(
    fs: FileSystem, directory: str, group: str, ref: SegmentRef, live: LiveSet
) -> NoReturn:
    """Name the lowest live index that a segment does not have."""
    segment = OpenSegment(fs, directory, ref)
    left = live
    with segment.file:
        first = ref.first_position - 1
        for frames in scan_frames(segment.file, SEGMENT_HEADER_BYTES, segment.frames_end, first):
            left -= LiveSet.from_iterable(frames.positions.tolist())
    raise EntriesLost(group, left.first or 0, f"it is live and not in {ref.name}")
