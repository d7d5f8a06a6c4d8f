"""What `lithify log stat` tells: gathered as one value, then printed for people or as JSON.

1. Pins first, because the command pins the log itself while it looks.
2. The manifest, and the active segment read through: its counts stand nowhere else.
3. Journal and history. Where one of them is damaged the rest is still told, and the damage with it.

Removes the pins of processes that have died, if it may; changes nothing else.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from lithify.cli.output import human_age, human_count, human_time, print_line, print_table
from lithify.compaction.horizon import Hold, find_horizon
from lithify.compaction.journal import Journal, RunRecord
from lithify.compaction.plan import human_bytes
from lithify.compaction.report import History, Report
from lithify.errors import Corrupt, UnsupportedVersion
from lithify.log.manifest import Manifest, SegmentRef
from lithify.log.names import HISTORY
from lithify.log.pins import PinInfo, read_pin_files
from lithify.log.readonly import find_manifest, pinned_manifest, read_active

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from lithify.clock import Clock
    from lithify.fs import FileSystem
    from lithify.log.segment import SegmentWriter

__all__ = ["LogStat", "print_stat", "read_stat"]

_REPORTS = 5


@dataclass(frozen=True, slots=True)
class LogStat:
    """A log at one moment."""

    directory: str
    now_ms: int
    manifest: Manifest
    segments: tuple[SegmentRef, ...]
    """Those of the log, the active one with what is in it now."""
    torn_bytes: int
    holds: tuple[Hold, ...]
    """Those that can be told from the files; a process that has the log open may have more."""
    pins: tuple[PinInfo, ...]
    run: RunRecord | None
    reports: tuple[Report, ...]
    damage: tuple[str, ...]

    @property
    def last_position(self) -> int:
        """Of the whole log."""
        return max([self.manifest.last_position, *(s.last_position for s in self.segments)])

    def to_json(self) -> dict[str, Any]:
        """Raw numbers under the names of the code."""
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
    """Look at a log; `progress` is told the bytes of the active segment as they are read."""
    find_manifest(fs, directory)
    pins = _read_pins(fs, directory)
    damage: list[str] = []
    with pinned_manifest(fs, directory, owner=owner, clock=clock, token=token) as manifest:
        tail = read_active(
            fs, directory, manifest, lambda frames: progress(int(frames.lengths().sum()))
        )
        run = _or_damage(Journal(fs, directory).read, None, damage)
        history = History(fs, f"{directory}/{HISTORY}")
        reports = _or_damage(lambda: history.newest(_REPORTS), [], damage)
    return LogStat(
        directory=directory,
        now_ms=clock.now_ms(),
        manifest=manifest,
        segments=(*manifest.segments[:-1], _counted(manifest.active, tail.writer, tail.size)),
        torn_bytes=tail.torn_bytes,
        holds=tuple(_holds(manifest, run)),
        pins=tuple(pins),
        run=run,
        reports=tuple(reports),
        damage=tuple(damage),
    )


def _read_pins(fs: FileSystem, directory: str) -> list[PinInfo]:
    try:
        return read_pin_files(fs, directory)
    except PermissionError:
        # Who may not lock pins cannot tell the living from the dead, and does not need to.
        return []


def _or_damage[T](read: Callable[[], T], otherwise: T, damage: list[str]) -> T:
    try:
        return read()
    except (Corrupt, UnsupportedVersion) as error:
        damage.append(str(error))
        return otherwise
