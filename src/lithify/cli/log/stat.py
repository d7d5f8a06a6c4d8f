"""The output of `lithify log stat`: read as one value, then printed as text or JSON.

1. Pins first, because the command itself pins the log while it reads.
2. The manifest, and all of the active segment: its counts are stored nowhere else.
3. Journal and history. If one of them is damaged, the rest is shown together with the damage.

Removes the pins of dead processes, if it may; changes nothing else.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

from lithify.cli.output import human_age, human_count, human_time, print_line, print_table
from lithify.compaction.planning.horizon import Hold, find_horizon
from lithify.compaction.planning.plan import human_bytes
from lithify.compaction.reports.report import History, Report
from lithify.compaction.run.journal import Journal, RunRecord
from lithify.errors import Corrupt, UnsupportedVersion
from lithify.log.file_names import HISTORY
from lithify.log.read_only_log import find_manifest, list_pins, pinned_manifest, read_active
from lithify.positions import NO_POSITION

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from lithify.clock import Clock
    from lithify.fs import FileSystem
    from lithify.log.manifest import Manifest, SegmentRef
    from lithify.log.pins import PinInfo
    from lithify.log.segments.segment_file import SegmentWriter

__all__ = ["LogStat", "print_stat", "read_stat"]

T = TypeVar("T")

_REPORTS = 5


@dataclass(frozen=True, slots=True)
class LogStat:
    """A log at one moment."""

    directory: str
    now_ms: int
    manifest: Manifest
    segments: tuple[SegmentRef, ...]
    """The segments of the log; the active one with its current counts."""
    torn_bytes: int
    holds: tuple[Hold, ...]
    """The pins in files; a process that has the log open may have more."""
    pins: tuple[PinInfo, ...]
    run: RunRecord | None
    reports: tuple[Report, ...]
    damage: tuple[str, ...]

    @property
    def last_position(self) -> int:
        """Totals of the whole log."""
        return max([self.manifest.last_position, *(s.last_position for s in self.segments)])

    def to_json(self) -> dict[str, Any]:
        """The row for `--json`: raw numbers, named as in the code."""
        manifest, segments, view = self.manifest, self.segments, self.manifest.view
        run = self.run
        return {
            "directory": self.directory,
            "kind": manifest.kind,
            "log_id": manifest.log_id.hex(),
            "generation": manifest.generation,
            "entries": sum(s.entries for s in segments),
            "live_entries": sum(s.live_entries for s in segments),
            "frame_bytes": sum(s.frame_bytes for s in segments),
            "live_bytes": sum(s.live_bytes for s in segments),
            "file_bytes": _file_bytes(self),
            "torn_bytes": self.torn_bytes,
            "first_position": segments[0].first_position,
            "last_position": self.last_position,
            "horizon": manifest.horizon,
            "last_run": manifest.last_run,
            "segments": [asdict(segment) for segment in segments],
            "view": None if view is None else [asdict(segment) for segment in view],
            "holds": [asdict(hold) for hold in self.holds],
            "pins": [asdict(pin) for pin in self.pins],
            "retired": [asdict(retired) for retired in manifest.retired],
            "run": None
            if run is None
            else {
                "run_id": run.run_id,
                "phase": run.phase,
                "policy": run.policy,
                "trigger": run.trigger,
                "started_ms": run.started_ms,
                "horizon": run.horizon,
                "groups": len(run.groups),
                "groups_copied": len(run.targets),
            },
            "reports": [asdict(report) for report in self.reports],
            "damage": self.damage,
        }


def read_stat(
    fs: FileSystem,
    directory: str,
    clock: Clock,
    *,
    owner: str,
    token: str,
    progress: Callable[[int], None],
) -> LogStat:
    """Read a log; `progress` gets the bytes of the active segment as they are read."""
    find_manifest(fs, directory)
    pins = list_pins(fs, directory)
    damage: list[str] = []
    with pinned_manifest(fs, directory, owner=owner, clock=clock, token=token) as manifest:
        tail = read_active(
            fs, directory, manifest, lambda frames: progress(int(frames.lengths().sum()))
        )
        run = _or_damage(Journal(fs, directory).read, damage)
        history = History(fs, f"{directory}/{HISTORY}")
        reports = _or_damage(lambda: history.newest(_REPORTS), damage)
    return LogStat(
        directory=directory,
        now_ms=clock.now_ms(),
        manifest=manifest,
        segments=(*manifest.segments[:-1], _counted(manifest.active, tail.writer, tail.size)),
        torn_bytes=tail.torn_bytes,
        holds=tuple(_holds(manifest, run)),
        pins=tuple(pins),
        run=run,
        reports=tuple(reports or ()),
        damage=tuple(damage),
    )


def _or_damage(read: Callable[[], T], damage: list[str]) -> T | None:
    try:
        return read()
    except (Corrupt, UnsupportedVersion) as error:
        damage.append(str(error))
        return None


def _counted(active: SegmentRef, writer: SegmentWriter, file_bytes: int) -> SegmentRef:
    """The manifest's entry for the active segment if it were sealed now."""
    _, footer = writer.footer()
    return replace(
        active,
        last_position=footer.last_position,
        entries=footer.entries,
        frame_bytes=footer.frame_bytes,
        file_bytes=file_bytes,
        time_min=footer.time_min,
        time_max=footer.time_max,
    )


def _holds(manifest: Manifest, run: RunRecord | None) -> Iterator[Hold]:
    yield Hold("active segment", manifest.active.first_position - 1)
    if run is not None:
        yield Hold("journal", run.horizon, f"run {run.run_id}", run.started_ms)


def _file_bytes(stat: LogStat) -> int:
    """The size of all segments and dead sets on disk, each counted once."""
    sizes = stat.manifest.sizes()
    sizes[stat.segments[-1].name] = stat.segments[-1].file_bytes
    retired = sum(retired.file_bytes for retired in stat.manifest.retired)
    return sum(sizes.values()) + retired


def print_stat(stat: LogStat) -> None:
    """Print it as text."""
    manifest = stat.manifest
    print_line(f"{stat.directory}: log of kind {manifest.kind}, generation {manifest.generation}")
    for name, text in _facts(stat):
        print_line(f"  {name:<10} {text}")
    print_line()
    _print_segments("Segments", stat.segments)
    if manifest.view is not None:
        print_line()
        _print_segments("Compacted view", manifest.view)
    if stat.pins:
        rows = [
            (pin.owner, str(pin.generation), human_age(stat.now_ms - pin.since_ms))
            for pin in stat.pins
        ]
        print_line()
        print_table("Pins", ("owner", "generation>", "age>"), rows)
    if manifest.retired:
        files = [
            (retired.name, human_bytes(retired.file_bytes), str(retired.generation))
            for retired in manifest.retired
        ]
        print_line()
        print_table("Retired", ("file", "size>", "by generation>"), files)
    if stat.reports:
        print_line()
        print_line("Last runs, newest first")
        for report in stat.reports:
            summary = report.summary().removeprefix(f"{report.log}: ")
            print_line(f"  {human_time(report.started_ms, 'seconds')}  {summary}")


def _facts(stat: LogStat) -> Iterator[tuple[str, str]]:
    manifest, segments = stat.manifest, stat.segments
    entries = sum(s.entries for s in segments)
    live = sum(s.live_entries for s in segments)
    counts = f"{human_count(live)} live, {human_count(entries - live)} dead"
    yield "entries", f"{human_count(entries)} ({'all live' if live == entries else counts})"
    if entries:
        first = next(s for s in segments if s.entries)
        yield "positions", f"{first.first_position} … {stat.last_position}"
        times = [s for s in segments if s.entries]
        low, high = min(s.time_min for s in times), max(s.time_max for s in times)
        yield "times", f"{human_time(low, 'seconds')} … {human_time(high, 'seconds')}"
    dead_bytes = sum(s.frame_bytes - s.live_bytes for s in segments)
    retired_bytes = sum(retired.file_bytes for retired in manifest.retired)
    parts = f"{human_bytes(dead_bytes)} dead and {human_bytes(retired_bytes)} retired"
    yield "disk", f"{human_bytes(_file_bytes(stat))}, of it {parts}"
    if stat.torn_bytes:
        yield "torn", f"{human_bytes(stat.torn_bytes)} after the last good frame"
    judged = manifest.horizon
    yield "judged", "nothing yet" if judged == NO_POSITION else f"up to position {judged}"
    yield "next run", find_horizon(stat.holds).explain(stat.now_ms)
    if stat.run is not None:
        run = stat.run
        age = human_age(stat.now_ms - run.started_ms)
        copied = f"{len(run.targets)} of {len(run.groups)} groups copied"
        yield "run", f"{run.run_id} unfinished in {run.phase}, {copied}, started {age} ago"
    for text in stat.damage:
        yield "damaged", text


def _print_segments(title: str, segments: Sequence[SegmentRef]) -> None:
    columns = ("file", "state", "first>", "last>", "entries>", "live>", "size>", "newest")
    rows = [
        (
            s.name,
            "sealed" if s.sealed else "active",
            str(s.first_position),
            str(s.last_position) if s.entries else "-",
            human_count(s.entries),
            f"{s.live_entries / s.entries:.0%}" if s.entries else "-",
            human_bytes(s.file_bytes),
            human_time(s.time_max, "minutes") if s.entries else "-",
        )
        for s in segments
    ]
    print_table(title, columns, rows)
