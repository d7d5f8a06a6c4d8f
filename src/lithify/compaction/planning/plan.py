"""A plan: what one compaction run will do to each segment of a log, as a value.

A policy (`compaction/policies/built_in.py`) makes a plan from the statistics of the segments, a dry
run prints it, the journal stores it, the rewrite executes it. Nothing here reads a file or a clock,
so the same statistics always give the same plan.

A plan puts every segment in exactly one of three places:

1. `dropped`: no entry is live, so the file is deleted and nothing is copied;
2. a `SegmentGroup`: adjacent segments whose live frames are copied, in order, into one new segment.
   Dropped segments may lie between the sources of a group; kept segments may not, because the
   target replaces its sources and positions must stay in order;
3. `kept`: unchanged, with the reason.

Sizes: the `bytes` of a segment are its frames. The rest of a file (header, footer) has the same
size in every file, and the plan counts it once per file, as `overhead_bytes`.

In JSON a plan is an object with the fields of `Plan`; `dropped`, `groups` and `kept` are lists
of objects with the fields of `DroppedSegment`, `SegmentGroup` and `KeptSegment`.

Invariants: 0 <= live <= total, for entries and for bytes; a segment without entries has no
bytes, and without live entries no live bytes; a dead entry has dead bytes. There may be dead
bytes without a dead entry: a batch of which only some messages are live.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from itertools import chain
from typing import TYPE_CHECKING, TypeVar

from lithify.errors import InvalidInput, PlanStale

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = [
    "DroppedSegment",
    "KeptSegment",
    "Plan",
    "SegmentGroup",
    "SegmentStats",
    "apply_plan",
    "human_bytes",
]

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class SegmentStats:
    """The statistics of one segment, for policies.

    Positions are the first and last one that the segment covers; one that covers none has
    `last_position == first_position - 1`. `busy` means that the segment is in use elsewhere and
    must not be planned now.
    """

    id: int
    first_position: int
    last_position: int
    entries: int
    bytes: int
    live_entries: int
    live_bytes: int
    sealed: bool = True
    busy: bool = False

    def __post_init__(self) -> None:
        subject = f"segment {self.id}"
        _check_sizes(subject, self.entries, self.bytes, self.live_entries, self.live_bytes)
        covered = self.last_position - self.first_position + 1
        if self.first_position < 0 or covered < 0 or (self.entries > 0 and covered == 0):
            raise InvalidInput(
                f"{subject} has {self.entries} entries at positions {self.first_position} to "
                f"{self.last_position}, must start at 0 or above and cover its entries"
            )

    @property
    def is_dead(self) -> bool:
        """Is no entry live?"""
        return self.live_entries == 0

    @property
    def dead_bytes(self) -> int:
        """Bytes that a rewrite would not copy."""
        return self.bytes - self.live_bytes

    @property
    def blocked_by(self) -> str | None:
        """Why no plan may include it: "active", "busy", or `None`."""
        if not self.sealed:
            return "active"
        return "busy" if self.busy else None


@dataclass(frozen=True, slots=True)
class DroppedSegment:
    """A segment that is deleted as a whole."""

    segment: int
    bytes: int
    reason: str

    def __post_init__(self) -> None:
        if self.bytes < 0:
            raise InvalidInput(f"segment {self.segment} has {self.bytes} bytes, must be >= 0")


@dataclass(frozen=True, slots=True)
class SegmentGroup:
    """Adjacent segments rewritten together into one; the sizes are sums over the sources."""

    sources: tuple[int, ...]
    entries: int
    bytes: int
    live_entries: int
    live_bytes: int
    reason: str

    def __post_init__(self) -> None:
        if not self.sources:
            raise InvalidInput("a group has no sources, must have at least one")
        subject = f"group {_id_ranges(self.sources)}"
        _check_sizes(subject, self.entries, self.bytes, self.live_entries, self.live_bytes)
        if self.live_entries == 0:
            raise InvalidInput(f"{subject} has no live entry, so its sources must be dropped")

    @classmethod
    def of(cls, sources: Sequence[SegmentStats], reason: str) -> SegmentGroup:
        """The group of the given segments, in order."""
        return cls(
            sources=tuple(source.id for source in sources),
            entries=sum(source.entries for source in sources),
            bytes=sum(source.bytes for source in sources),
            live_entries=sum(source.live_entries for source in sources),
            live_bytes=sum(source.live_bytes for source in sources),
            reason=reason,
        )


@dataclass(frozen=True, slots=True)
class KeptSegment:
    """A segment that is not changed."""

    segment: int
    reason: str


@dataclass(frozen=True, slots=True)
class Plan:
    """The decision; each tuple is in log order. See the module for the invariants."""

    policy: str
    dropped: tuple[DroppedSegment, ...]
    groups: tuple[SegmentGroup, ...]
    kept: tuple[KeptSegment, ...]
    overhead_bytes: int

    def __post_init__(self) -> None:
        if self.overhead_bytes < 0:
            raise InvalidInput(f"plan has overhead_bytes {self.overhead_bytes}, must be >= 0")
        for segment, times in Counter(self.segments()).items():
            if times > 1:
                raise InvalidInput(f"plan has segment {segment} in {times} places, must be 1")

    def segments(self) -> Iterable[int]:
        """The ids of all segments in the plan: dropped, then sources, then kept."""
        return chain(
            (dropped.segment for dropped in self.dropped),
            chain.from_iterable(group.sources for group in self.groups),
            (kept.segment for kept in self.kept),
        )

    @property
    def is_empty(self) -> bool:
        """Does the plan change nothing?"""
        return not self.dropped and not self.groups

    @property
    def bytes_read(self) -> int:
        """The least a rewrite reads: every live frame once. Gaps that are read come on top."""
        return sum(group.live_bytes for group in self.groups)

    @property
    def bytes_written(self) -> int:
        """Size of the targets on disk, overhead included; side files come on top."""
        return self.bytes_read + self.overhead_bytes * len(self.groups)

    @property
    def bytes_freed(self) -> int:
        """Reduction of the log's size once all retired files are reclaimed."""
        dropped_bytes = sum(dropped.bytes for dropped in self.dropped)
        dead_bytes = sum(group.bytes - group.live_bytes for group in self.groups)
        return dropped_bytes + dead_bytes + self.overhead_bytes * self.segments_freed

    @property
    def segments_freed(self) -> int:
        """Reduction of the log's number of segments."""
        return len(self.dropped) + sum(len(group.sources) - 1 for group in self.groups)

    def explain(self) -> str:
        """A table with one line per dropped segment, group and kept segment, then a total."""
        rows = [("action", "segments", "live entries", "live bytes", "reason")]
        for dropped in self.dropped:
            sizes = f"0 B of {human_bytes(dropped.bytes)}"
            rows.append(("drop", str(dropped.segment), "0", sizes, dropped.reason))
        for group in self.groups:
            counts = f"{group.live_entries} of {group.entries}"
            sizes = f"{human_bytes(group.live_bytes)} of {human_bytes(group.bytes)}"
            rows.append(("rewrite", _id_ranges(group.sources), counts, sizes, group.reason))
        rows.extend(("keep", str(kept.segment), "-", "-", kept.reason) for kept in self.kept)
        widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
        lines = [
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
            for row in rows
        ]
        return "\n".join([f"policy {self.policy}", *lines, self._total_line()])

    def _total_line(self) -> str:
        sources = sum(len(group.sources) for group in self.groups)
        return (
            f"total: {len(self.dropped)} dropped, {sources} rewritten into {len(self.groups)}, "
            f"{len(self.kept)} kept; reads {human_bytes(self.bytes_read)}, "
            f"writes {human_bytes(self.bytes_written)}, frees {human_bytes(self.bytes_freed)} "
            f"and {self.segments_freed} segments, at {human_bytes(self.overhead_bytes)} a file"
        )

    def to_json(self) -> dict[str, object]:
        """Encode as JSON values, see the module."""
        return {
            "policy": self.policy,
            "dropped": [asdict(dropped) for dropped in self.dropped],
            "groups": [asdict(group) | {"sources": list(group.sources)} for group in self.groups],
            "kept": [asdict(kept) for kept in self.kept],
            "overhead_bytes": self.overhead_bytes,
        }

    @classmethod
    def from_json(cls, value: object) -> Plan:
        """Decode what `to_json` returned; raises `InvalidInput` naming the invalid field."""
        return cls(
            policy=_field(value, "policy", str),
            dropped=tuple(map(_dropped_from_json, _field(value, "dropped", list))),
            groups=tuple(map(_group_from_json, _field(value, "groups", list))),
            kept=tuple(map(_kept_from_json, _field(value, "kept", list))),
            overhead_bytes=_field(value, "overhead_bytes", int),
        )


def apply_plan(plan: Plan, segments: Sequence[SegmentStats]) -> tuple[SegmentStats, ...]:
    """The statistics after the plan; a target has the id of its first source.

    Raises `PlanStale` if the plan was not made from these segments.
    """
    _check_fresh(plan, segments)
    by_id = {segment.id: segment for segment in segments}
    gone = {dropped.segment for dropped in plan.dropped}
    targets: dict[int, SegmentStats] = {}
    for group in plan.groups:
        first, *others = group.sources
        gone.update(others)
        targets[first] = SegmentStats(
            id=first,
            first_position=by_id[first].first_position,
            last_position=by_id[group.sources[-1]].last_position,
            entries=group.live_entries,
            bytes=group.live_bytes,
            live_entries=group.live_entries,
            live_bytes=group.live_bytes,
        )
    return tuple(targets.get(stats.id, stats) for stats in segments if stats.id not in gone)


def human_bytes(count: int) -> str:
    """Format a size: `0 B`, `1.5 KiB`, `64.0 MiB`."""
    if count < 1024:
        return f"{count} B"
    size = float(count)
    for unit in ("KiB", "MiB", "GiB", "TiB"):
        size /= 1024
        if size < 1024:
            return f"{size:.1f} {unit}"
    return f"{size / 1024:.1f} PiB"


def _check_sizes(
    subject: str, entries: int, size_bytes: int, live_entries: int, live_bytes: int
) -> None:
    if not (0 <= live_entries <= entries and 0 <= live_bytes <= size_bytes):
        raise InvalidInput(
            f"{subject} has {live_entries} of {entries} entries and {live_bytes} of {size_bytes} "
            "bytes live, must be 0 <= live <= total"
        )
    for what, count, taken_bytes in (
        ("entries", entries, size_bytes),
        ("live entries", live_entries, live_bytes),
    ):
        if (count == 0) != (taken_bytes == 0):
            raise InvalidInput(
                f"{subject} has {count} {what} in {taken_bytes} bytes, must both be zero or neither"
            )
    if live_entries < entries and live_bytes == size_bytes:
        raise InvalidInput(
            f"{subject} has {entries - live_entries} dead entries in 0 dead bytes, must be above 0"
        )


def _check_fresh(plan: Plan, segments: Sequence[SegmentStats]) -> None:
    by_id = {segment.id: segment for segment in segments}
    planned = set(plan.segments())
    if strays := sorted(planned ^ by_id.keys()):
        raise PlanStale(f"segments {_id_ranges(strays)} are in the log or in the plan, not in both")
    dropped = {item.segment: item for item in plan.dropped}
    for segment in planned.difference(kept.segment for kept in plan.kept):
        if blocked_by := by_id[segment].blocked_by:
            raise PlanStale(f"segment {segment} is {blocked_by} now")
    for segment, item in dropped.items():
        if not by_id[segment].is_dead or by_id[segment].bytes != item.bytes:
            raise PlanStale(f"segment {segment} is not the dead one that was to be dropped")
    order = [stats.id for stats in segments if stats.id not in dropped]
    place = {segment: index for index, segment in enumerate(order)}
    for group in plan.groups:
        start = place[group.sources[0]]
        if tuple(order[start : start + len(group.sources)]) != group.sources:
            raise PlanStale(f"segments {_id_ranges(group.sources)} are not adjacent in the log")
        if SegmentGroup.of([by_id[source] for source in group.sources], group.reason) != group:
            raise PlanStale(f"segments {_id_ranges(group.sources)} have changed their sizes")


def _id_ranges(ids: Sequence[int]) -> str:
    """Ids in the given order, consecutive ones joined: `3-5,7`."""
    spans: list[tuple[int, int]] = []
    for segment in ids:
        if spans and segment == spans[-1][1] + 1:
            spans[-1] = (spans[-1][0], segment)
        else:
            spans.append((segment, segment))
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in spans)


def _field(record: object, name: str, kind: type[_T]) -> _T:
    if not isinstance(record, Mapping) or name not in record:
        raise InvalidInput(f"plan has {record!r} where an object with field {name!r} must be")
    value = record[name]
    # In Python a bool is an int, but no field of a plan is a bool.
    if not isinstance(value, kind) or isinstance(value, bool):
        raise InvalidInput(f"plan field {name!r} is {value!r}, must be a JSON {kind.__name__}")
    return value


def _dropped_from_json(value: object) -> DroppedSegment:
    return DroppedSegment(
        _field(value, "segment", int), _field(value, "bytes", int), _field(value, "reason", str)
    )


def _group_from_json(value: object) -> SegmentGroup:
    sources = _field(value, "sources", list)
    for source in sources:
        if not isinstance(source, int) or isinstance(source, bool):
            raise InvalidInput(f"plan field 'sources' has {source!r}, must be a JSON int")
    return SegmentGroup(
        sources=tuple(sources),
        entries=_field(value, "entries", int),
        bytes=_field(value, "bytes", int),
        live_entries=_field(value, "live_entries", int),
        live_bytes=_field(value, "live_bytes", int),
        reason=_field(value, "reason", str),
    )


def _kept_from_json(value: object) -> KeptSegment:
    return KeptSegment(_field(value, "segment", int), _field(value, "reason", str))
