"""The segments of one group, the indexes that count of each, and reads of their entries.

Segments are ordered by number, which is the order of their indexes. A newer segment that begins
below the end of an older one overwrites it: only the older segment's indexes below it count. A
segment without indexes that count is superseded and can be deleted.

    add C 2…7 to A 1…4, B 5…10   gives   A 1…1, C 2…7; B is superseded

A read follows a plan: which indexes to read from which segment, decided once. A plan stays valid
while segments are merged: all the old names lead to the merged file. An index that has died since
is `EntryDeleted`, not a file error. An index in a damaged place is `EntryUnreadable`; its
neighbours can be read, and the damage is noted (`damage.py`).

`spans` is replaced as a whole and may be read by any thread; the group's thread changes it. Any
thread may read entries.
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
        """The segment's number."""
        return self.ref.id


def limited(
    spans: Sequence[IndexSpan], ref: SegmentRef
) -> tuple[tuple[IndexSpan, ...], tuple[IndexSpan, ...]]:
    """(spans with a newer segment, spans that it supersedes)."""
    kept, superseded = list(spans), []
    # Spans ascend, so only the last ones overlap.
    while kept and (kept[-1].number == ref.id or kept[-1].first >= ref.first_position):
        span = kept.pop()
        if span.number != ref.id:
            superseded.append(span)
    if kept and kept[-1].last >= ref.first_position:
        kept[-1] = IndexSpan(kept[-1].ref, kept[-1].first, ref.first_position - 1)
    whole = IndexSpan(ref, ref.first_position, ref.last_position)
    return (*kept, whole), tuple(reversed(superseded))


@dataclass(slots=True, eq=False)
class _Read:
    """A read of a segment file in progress."""

    name: str
    is_replaced: bool = False
    """Was the file replaced or removed since the read began?"""


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
        self._reads: set[_Read] = set()
        """The reads in progress."""
        self.spans: tuple[IndexSpan, ...] = ()
        self.last_number = 0
        """The highest number used, even if no index of that segment counts."""
        self._sealed_number = 0
        """The segment that was the newest, of which all indexes count, when it was sealed."""
        self.add(sorted(refs, key=lambda ref: ref.id))

    def add(self, refs: Iterable[SegmentRef]) -> list[str]:
        """Add new segments, or one that has grown; returns the names of superseded ones."""
        names: list[str] = []
        for ref in refs:
            self.last_number = max(self.last_number, ref.id)
            self.spans, superseded = limited(self.spans, ref)
            names += (span.ref.name for span in superseded)
        self.close_files(names)
        return names

    @property
    def grows(self) -> bool:
        """May the newest segment be appended to? Only if all of its indexes count."""
        last = self.spans[-1] if self.spans else None
        return (
            last is not None
            and last.number == self.last_number
            and last.last == last.ref.last_position
        )

    def cut(self) -> tuple[int, int]:
        """(number, index): in segments up to the number no index above `index` counts."""
        newest = self.spans[-1] if self.spans else None
        is_sealed = newest is not None and newest.number == self._sealed_number
        if newest is not None and is_sealed and newest.last == newest.ref.last_position:
            # A flush may have begun before that: it appends to this one and starts the next ones.
            return newest.number - 1, self.spans[-2].last if len(self.spans) > 1 else 0
        if not self.grows:
            return self.last_number, self.last
        # All indexes of the newest segment count, and it may grow.
        return self.last_number - 1, self.spans[-2].last if len(self.spans) > 1 else 0

    @property
    def last(self) -> int:
        """The highest index that counts, 0 if there is none."""
        return self.spans[-1].last if self.spans else 0

    def limit(self, index: int, number: int | None = None, but: Container[int] = ()) -> list[str]:
        """Truncate all segments after an index, or only those up to a number and not in `but`.

        Returns the names of segments without indexes that count.
        """
        self._sealed_number = 0
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
        """Apply a compaction: segments that are gone, and segments that were rewritten."""
        removed, changed = set(gone), {ref.id: ref for ref in refs}
        spans = []
        for span in self.spans:
            ref = changed.get(span.number)
            if ref is not None:
                spans.append(IndexSpan(ref, ref.first_position, ref.last_position))
            elif span.ref.name not in removed:
                spans.append(span)
        self.spans = tuple(spans)
        self.close_files([*removed, *(ref.name for ref in changed.values())])

    def seal_newest(self) -> None:
        """Make the next entries go to a new segment; all indexes of the newest one count."""
        self._sealed_number = self.last_number
        self.last_number += 1

    def repaired(self, ref: SegmentRef) -> None:
        """A repair replaced a segment by one with all of its indexes that count."""
        spans = []
        for span in self.spans:
            if span.number == ref.id:
                first, last = max(span.first, ref.first_position), min(span.last, ref.last_position)
                spans.append(IndexSpan(ref, first, last))
            else:
                spans.append(span)
        self.spans = tuple(spans)
        self.close_files([ref.name])

    def find(self, index: int) -> IndexSpan | None:
        """The segment whose range includes an index."""
        spans = self.spans
        at = bisect_right(spans, index, key=lambda span: span.first) - 1
        return spans[at] if at >= 0 and index <= spans[at].last else None

    def plan(self, indexes: Iterable[int]) -> list[tuple[SegmentRef, list[int]]]:
        """The segments that have these ascending indexes; indexes in no segment are skipped."""
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
        """The entries at these ascending indexes that are in segments.

        `EntryUnreadable` names one in a damaged place, or one that the disk cannot read.
        """
        ascending = list(indexes)
        entries: dict[int, Entry] = {}
        while True:
            spans = self.spans
            try:
                for ref, part in self.plan(ascending):
                    entries |= self._read(ref, part)
            except FileNotFoundError:
                # A compaction has dropped a segment meanwhile, so plan again.
                if spans is self.spans:
                    raise
            else:
                return entries

    def read_intact(self, ref: SegmentRef, indexes: Sequence[int]) -> dict[int, Entry]:
        """The readable ones of a segment's entries; damage is noted."""
        try:
            with self._use(ref) as (segment, _):
                return segment.read(indexes)
        except FileNotFoundError:
            raise
        except (Corrupt, ReadFailed, OSError):
            return {}

    def term_between(self, index: int) -> int | None:
        """The term of an unreadable entry, if those of its neighbours determine it.

        Terms never decrease along a log; a segment's footer has the lowest and highest.
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
            found, damage = {}, error
        if damage is not None:
            for index in indexes:
                if index not in found:
                    raise EntryUnreadable(index, f"{self._directory}/{ref.name}", damage)
        return found

    @contextmanager
    def _use(self, ref: SegmentRef) -> Iterator[tuple[SegmentFile, list[Exception]]]:
        """An open segment, and the list of damage found in it, which is noted.

        The block owns the file, so that no other thread closes it, and returns it to the cache. A
        damaged file is closed, because it will be replaced. If that has happened meanwhile, its
        damage is repaired and not noted again, and it is not returned to the cache.
        """
        with self._lock:
            cached = self._open.pop(ref.name, None)
            read = _Read(ref.name)
            self._reads.add(read)
        if cached is not None and cached[0] != ref:
            cached[1].close()
            cached = None
        seen: list[Exception] = []
        segment = cached[1] if cached else None
        try:
            if segment is None:
                segment = SegmentFile(self._fs, self._directory, ref)
            segment.damaged = seen.append
            segment.open()
            yield segment, seen
        except BaseException as error:
            if segment is not None:
                segment.close()
            is_damage = isinstance(error, Corrupt | ReadFailed | OSError)
            is_missing = isinstance(error, FileNotFoundError)
            with self._lock:
                self._end(read, error if is_damage and not is_missing else None)
            raise
        closing: list[SegmentFile] = []
        with self._lock:
            self._end(read, seen[0] if seen else None)
            if seen or read.is_replaced:
                closing.append(segment)
            else:
                replaced = self._open.pop(ref.name, None)
                closing += [replaced[1]] if replaced else []
                self._open[ref.name] = ref, segment
                if len(self._open) > self._open_max:
                    closing.append(self._open.popitem(last=False)[1][1])
        for each in closing:
            each.close()

    def _end(self, read: _Read, damage: BaseException | None) -> None:
        """Note the damage that a read has found, unless the file was replaced since it began."""
        self._reads.discard(read)
        if isinstance(damage, Exception) and not read.is_replaced:
            self.damages.found(read.name, damage)

    def close_files(self, names: Iterable[str]) -> None:
        """Close open segments; the next read opens them again."""
        for name in names:
            with self._lock:
                for read in self._reads:
                    read.is_replaced |= read.name == name
                cached = self._open.pop(name, None)
            if cached is not None:
                cached[1].close()

    def close(self) -> None:
        """Close all files. A read in progress closes its own at its end."""
        self._open_max = 0
        self.close_files(list(self._open))
