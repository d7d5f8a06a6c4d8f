"""Statistics of a blob store: what is valid now, and when it stops being valid.

    found = store.statistics(jobs)
    found.reclaimable_bytes                       # that a run would find dead now
    found.reclaimable_bytes_in(24 * 3_600_000)    # that a run would find dead tomorrow
    print(found.explain())

1. Build missing key indexes; this is the only step that reads payloads.
2. Count ranges of hashes in parallel tasks (`tasks.py`).
3. Add up their results: for each segment what is valid, and in which span of time it ends.

A forecast says what a run that begins then would drop if nothing happened until then: blobs expire,
deletes pass their retention. It is exact for the segments that are sealed now. Dead bytes of the
active segment count as reclaimable only once it is sealed. Holds are not considered.

Values are pure. `find_statistics` reads files; any module may call it. `dataframe.py` has
the same as a Spark table.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from lithify.blobs.statistics.tasks import Spans, plan_statistics, run_statistics
from lithify.blobs.validity_tasks import ROW_BYTES
from lithify.compaction.planning.plan import human_bytes
from lithify.compaction.tasks.jobs import LocalJobs, ignore_progress, no_check
from lithify.errors import InvalidInput
from lithify.log.segments.segment_file import SEGMENT_HEADER_BYTES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lithify.blobs.statistics.tasks import Subject
    from lithify.compaction.tasks.jobs import Jobs

__all__ = ["SegmentStatistics", "SpanStatistics", "StoreStatistics", "find_statistics"]

MEMORY_BYTES = 256 * 2**20


@dataclass(frozen=True, slots=True)
class SegmentStatistics:
    """One segment; bytes are those of frames."""

    id: int
    active: bool
    bytes: int
    records: int
    """Including invalid records, without the parts of large contents."""
    valid_bytes: int
    valid_records: int
    ending_bytes: tuple[int, ...]
    """Valid bytes that end in each span of the forecast."""
    ending_records: tuple[int, ...]

    @property
    def reclaimable_bytes(self) -> int:
        """Bytes that a run would find dead now; 0 for the active segment."""
        return 0 if self.active else self.bytes - self.valid_bytes


@dataclass(frozen=True, slots=True)
class SpanStatistics:
    """One span of the forecast, over all sealed segments."""

    start_ms: int
    stop_ms: int
    records: int
    """Records that stop being valid in it."""
    bytes: int
    reclaimable_bytes: int
    """Bytes that a run beginning at its end would find dead in total."""


@dataclass(frozen=True, slots=True)
class StoreStatistics:
    """See the module."""

    directory: str
    as_of_ms: int
    span_ms: int
    capacity_bytes: int
    used_bytes: int
    """Of segment files."""
    segments: tuple[SegmentStatistics, ...]
    """In the order of positions, the active one last."""

    @property
    def valid_bytes(self) -> int:
        """Of all segments."""
        return sum(segment.valid_bytes for segment in self.segments)

    @property
    def valid_records(self) -> int:
        """Of all segments."""
        return sum(segment.valid_records for segment in self.segments)

    @property
    def reclaimable_bytes(self) -> int:
        """Bytes that a run would find dead now."""
        return sum(segment.reclaimable_bytes for segment in self.segments)

    def reclaimable_bytes_in(self, time_ms: int) -> int:
        """Bytes that a run would find dead after this time; an incomplete span does not count."""
        spans, count = self.forecast(), time_ms // self.span_ms
        if not 0 <= count <= len(spans):
            limit = len(spans) * self.span_ms
            raise InvalidInput(f"{time_ms} ms is outside the forecast, which covers {limit} ms")
        return spans[count - 1].reclaimable_bytes if count else self.reclaimable_bytes

    def forecast(self) -> tuple[SpanStatistics, ...]:
        """The spans of time from now on."""
        sealed = [segment for segment in self.segments if not segment.active]
        total, spans = self.reclaimable_bytes, []
        for number in range(len(self.segments[0].ending_bytes)):
            size = sum(segment.ending_bytes[number] for segment in sealed)
            records = sum(segment.ending_records[number] for segment in sealed)
            total += size
            start_ms = self.as_of_ms + number * self.span_ms
            spans.append(SpanStatistics(start_ms, start_ms + self.span_ms, records, size, total))
        return tuple(spans)

    def as_dict(self) -> dict[str, Any]:
        """The value for JSON."""
        return {
            **asdict(self),
            "valid_bytes": self.valid_bytes,
            "valid_records": self.valid_records,
            "reclaimable_bytes": self.reclaimable_bytes,
            "forecast": [asdict(span) for span in self.forecast()],
        }

    def explain(self) -> str:
        """For people: one line per segment, then the spans of time in which something ends."""
        rows = [("segment", "bytes", "valid", "share", "reclaimable")]
        for each in self.segments:
            share = f"{each.valid_bytes / each.bytes:.0%}" if each.bytes else "-"
            gain = "active" if each.active else human_bytes(each.reclaimable_bytes)
            sizes = human_bytes(each.bytes), human_bytes(each.valid_bytes)
            rows.append((str(each.id), *sizes, share, gain))
        head = (
            f"{self.directory}: {human_bytes(self.used_bytes)} of "
            f"{human_bytes(self.capacity_bytes)} used; {human_bytes(self.valid_bytes)} valid in "
            f"{self.valid_records} records, {human_bytes(self.reclaimable_bytes)} reclaimable"
        )
        ahead = [("in", "ends", "records", "reclaimable then")]
        for span in self.forecast():
            if span.records:
                in_h = (span.stop_ms - self.as_of_ms) / 3_600_000
                then = human_bytes(span.reclaimable_bytes)
                ahead.append((f"{in_h:g} h", human_bytes(span.bytes), str(span.records), then))
        return "\n".join([head, *_table(rows), *(_table(ahead) if len(ahead) > 1 else ())])


def find_statistics(
    subject: Subject,
    capacity_bytes: int,
    jobs: Jobs | None = None,
    spans: Spans | None = None,
    memory_bytes: int = MEMORY_BYTES,
) -> StoreStatistics:
    """The statistics of a store; its files must stay until this returns."""
    jobs, spans = jobs or LocalJobs(), spans or Spans()
    tasks, rows = plan_statistics(subject, spans, jobs.slots, memory_bytes)
    weight = ROW_BYTES * rows // len(tasks)
    results = jobs.run(
        "statistics",
        run_statistics,
        tasks,
        weights=[weight] * len(tasks),
        check=no_check,
        progress=ignore_progress,
    )
    shape = len(subject.indexes) + 1, spans.count + 2
    records, sizes = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
    for _, tally in results:
        records += tally.records
        sizes += tally.bytes
    manifest = subject.manifest
    refs = [*(index.segment for index in subject.indexes), manifest.active]
    lines = zip(refs, records.tolist(), sizes.tolist(), strict=True)
    sealed_bytes = sum(index.segment.file_bytes for index in subject.indexes)
    return StoreStatistics(
        subject.directory,
        subject.as_of_ms,
        spans.span_ms,
        capacity_bytes,
        sealed_bytes + subject.active_bytes,
        tuple(
            SegmentStatistics(
                ref.id,
                not ref.sealed,
                ref.frame_bytes if ref.sealed else subject.active_bytes - SEGMENT_HEADER_BYTES,
                sum(counted),
                sum(size[1:]),
                sum(counted[1:]),
                tuple(size[1:-1]),
                tuple(counted[1:-1]),
            )
            for ref, counted, size in lines
        ),
    )


def _table(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Right-justified columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(map(str.rjust, row, widths)) for row in rows]
