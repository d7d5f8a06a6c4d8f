"""The segments of one group: which there are, what counts of each, and reading them.

Segments are kept in the order of their numbers, which is the order of their indexes. A newer
segment that begins below the end of an older one overwrites it: of the older one only what comes
before counts, and one of which nothing counts is superseded and can go.

    add C 2…7 to A 1…4, B 5…10   gives   A 1…1, C 2…7; B is superseded

Reading goes by a plan: which indexes are to be read from which segment, decided once. A plan stays
good while segments are merged under it: the merged file is found under all the old names. An index
that has died since is `EntryGone`, not an error of the file. One in a damaged place is
`EntryUnreadable`; its neighbours are read all the same, and the damage is noted (`damage.py`).

`spans` is replaced as a whole and can be read by any thread; the group's thread changes it. Reading
is safe from any thread.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections import OrderedDict
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lithify.errors import Corrupt, ReadFailed
from lithify.raft.errors import EntryUnreadable
from lithify.raft.storage.damage import Damages
from lithify.raft.storage.segment_file import SegmentFile

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Iterator, Sequence

    from lithify.fs import FileSystem
    from lithify.log.manifest import SegmentRef
    from lithify.raft.entry import Entry

__all__ = ["GroupSegments", "IndexSpan"]

OPEN_FILES_MAX = 16


@dataclass(frozen=True, slots=True)
class IndexSpan:
    """A segment, and the indexes of it that count."""

    ref: SegmentRef
    first: int
    last: int

    @property
    def number(self) -> int:
        """Of the segment."""
        return self.ref.id


def limited(
    spans: Sequence[IndexSpan], ref: SegmentRef
) -> tuple[tuple[IndexSpan, ...], tuple[IndexSpan, ...]]:
    """(spans with a newer segment, those that it supersedes)."""
    kept, superseded = list(spans), []
    # Spans ascend, so only the last ones are concerned.
    while kept and (kept[-1].number == ref.id or kept[-1].first >= ref.first_position):
        span = kept.pop()
        if span.number != ref.id:
            superseded.append(span)
    if kept and kept[-1].last >= ref.first_position:
        kept[-1] = IndexSpan(kept[-1].ref, kept[-1].first, ref.first_position - 1)
    whole = IndexSpan(ref, ref.first_position, ref.last_position)
    return (*kept, whole), tuple(reversed(superseded))


class GroupSegments:
    """See the module."""

    def __init__(
        self,
        fs: FileSystem,
        directory: str,
        refs: Iterable[SegmentRef] = (),
        damages: Damages | None = None,
    ) -> None:
        self._fs = fs
        self._directory = directory
        self.damages = damages or Damages(directory.rpartition("/")[2])
        self._lock = threading.Lock()
        self._open: OrderedDict[str, tuple[SegmentRef, SegmentFile]] = OrderedDict()
        self._open_max = OPEN_FILES_MAX
        self.spans: tuple[IndexSpan, ...] = ()
        self.last_number = 0
        """The highest that was given out, also if nothing counts of that segment any more."""
        self.add(sorted(refs, key=lambda ref: ref.id))

    def add(self, refs: Iterable[SegmentRef]) -> list[str]:
        """Take in new segments, or one that has grown; the names of those that can go."""
        names: list[str] = []
        for ref in refs:
            self.last_number = max(self.last_number, ref.id)
            self.spans, superseded = limited(self.spans, ref)
            names += (span.ref.name for span in superseded)
        self._close(names)
        return names

    @property
    def grows(self) -> bool:
        """May the newest segment be appended to? Not if only a part of it counts."""
        last = self.spans[-1] if self.spans else None
        return (
            last is not None
            and last.number == self.last_number
            and last.last == last.ref.last_position
        )

    def cut(self) -> tuple[int, int]:
        """(number, index): of segments up to the number nothing behind the index counts."""
        if not self.grows:
            return self.last_number, self.last
        # The newest counts as a whole and may become longer.
        return self.last_number - 1, self.spans[-2].last if len(self.spans) > 1 else 0

    @property
    def last(self) -> int:
        """The highest index that counts, 0 if there is none."""
        return self.spans[-1].last if self.spans else 0

    def limit(self, index: int, number: int | None = None, but: Container[int] = ()) -> list[str]:
        """Let nothing behind an index count, of all segments or of those up to a number but some.

        The names of those of which nothing counts any more.
        """
        spans, dropped = [], []
        for span in self.spans:
            if number is not None and (span.number > number or span.number in but):
                spans.append(span)
            elif span.first <= index:
                spans.append(IndexSpan(span.ref, span.first, min(span.last, index)))
            else:
                dropped.append(span.ref.name)
        self.spans = tuple(spans)
        return dropped

    def replace(self, gone: Iterable[str], refs: Iterable[SegmentRef]) -> None:
        """Take in what a compaction did: some segments are gone, others hold less."""
        removed, changed = set(gone), {ref.id: ref for ref in refs}
        spans = []
        for span in self.spans:
            ref = changed.get(span.number)
            if ref is not None:
                spans.append(IndexSpan(ref, ref.first_position, ref.last_position))
            elif span.ref.name not in removed:
                spans.append(span)
        self.spans = tuple(spans)
        self._close([*removed, *(ref.name for ref in changed.values())])

    def seal_newest(self) -> None:
        """Let the next entries go to a new segment."""
        self.last_number += 1

    def repaired(self, ref: SegmentRef) -> None:
        """A segment was replaced by one that has all that counts of it."""
        spans = []
        for span in self.spans:
            if span.number == ref.id:
                first, last = max(span.first, ref.first_position), min(span.last, ref.last_position)
                spans.append(IndexSpan(ref, first, last))
            else:
                spans.append(span)
        self.spans = tuple(spans)
        self._close([ref.name])

    def find(self, index: int) -> IndexSpan | None:
        """The segment in which an index would be."""
        spans = self.spans
        at = bisect_right(spans, index, key=lambda span: span.first) - 1
        return spans[at] if at >= 0 and index <= spans[at].last else None

    def plan(self, indexes: Iterable[int]) -> list[tuple[SegmentRef, list[int]]]:
        """Where to read these ascending indexes; those that are in no segment are left out."""
        plan: list[tuple[SegmentRef, list[int]]] = []
        span: IndexSpan | None = None
        for index in indexes:
            if span is None or not span.first <= index <= span.last:
                span = self.find(index)
                if span is not None:
                    plan.append((span.ref, []))
            if span is not None:
                plan[-1][1].append(index)
        return plan

    def read(self, indexes: Iterable[int]) -> dict[int, Entry]:
        """The entries at these ascending indexes, as far as they are here.

        `EntryUnreadable` names one that is in a damaged place, or that the disk does not read.
        """
        wanted = list(indexes)
        found: dict[int, Entry] = {}
        while True:
            spans = self.spans
            try:
                for ref, here in self.plan(wanted):
                    found |= self._read(ref, here)
            except FileNotFoundError:
                # A compaction took place meanwhile: what was in a dropped segment is gone.
                if spans is self.spans:
                    raise
            else:
                return found

    def read_intact(self, ref: SegmentRef, indexes: Sequence[int]) -> dict[int, Entry]:
        """Those of a segment's entries that can be read; damage is noted."""
        try:
            with self._use(ref) as (segment, _):
                return segment.read(indexes)
        except FileNotFoundError:
            raise
        except (Corrupt, ReadFailed, OSError) as error:
            self.damages.found(ref.name, error)
            return {}

    def term_between(self, index: int) -> int | None:
        """The term of an entry that cannot be read, if its neighbours leave no other.

        Terms never fall along a log; a segment knows its lowest and highest.
        """
        span = self.find(index)
        if span is None:
            return None
        if span.ref.time_min == span.ref.time_max:
            return span.ref.time_min
        around = self.read_intact(span.ref, range(span.first, span.last + 1))
        below = max((e.term for i, e in around.items() if i < index), default=span.ref.time_min)
        above = min((e.term for i, e in around.items() if i > index), default=span.ref.time_max)
        return below if below == above else None

    def _read(self, ref: SegmentRef, indexes: Sequence[int]) -> dict[int, Entry]:
        damage: Exception | None
        try:
            with self._use(ref) as (segment, seen):
                found = segment.read(indexes)
                damage = seen[0] if seen else None
        except FileNotFoundError:
            raise
        except (Corrupt, ReadFailed, OSError) as error:
            self.damages.found(ref.name, error)
            found, damage = {}, error
        if damage is not None:
            for index in indexes:
                if index not in found:
                    raise EntryUnreadable(index, f"{self._directory}/{ref.name}", damage)
        return found

    @contextmanager
    def _use(self, ref: SegmentRef) -> Iterator[tuple[SegmentFile, list[Exception]]]:
        """The segment, open, and the damage that it meets.

        It is given back when the block ends, so that no other thread closes it; one that is damaged
        is closed, because it will be replaced.
        """
        with self._lock:
            kept = self._open.pop(ref.name, None)
        if kept is not None and kept[0] != ref:
            kept[1].close()
            kept = None
        seen: list[Exception] = []
        segment = kept[1] if kept else SegmentFile(self._fs, self._directory, ref)
        segment.damaged = seen.append
        try:
            segment.open()
            yield segment, seen
        except BaseException:
            segment.close()
            raise
        for error in seen[:1]:
            self.damages.found(ref.name, error)
        closing: list[SegmentFile] = [segment] if seen else []
        with self._lock:
            if not seen:
                replaced = self._open.pop(ref.name, None)
                closing += [replaced[1]] if replaced else []
                self._open[ref.name] = ref, segment
                if len(self._open) > self._open_max:
                    closing.append(self._open.popitem(last=False)[1][1])
        for each in closing:
            each.close()

    def _close(self, names: Iterable[str]) -> None:
        for name in names:
            with self._lock:
                found = self._open.pop(name, None)
            if found is not None:
                found[1].close()

    def close(self) -> None:
        """Close all files; whoever is reading closes its own when it is done."""
        self._open_max = 0
        self._close(list(self._open))
