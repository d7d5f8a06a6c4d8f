"""Events as typed values with one line of text.

Logs, metrics and tests use the same events: the log prints `str(event)`, metrics count by type,
tests compare values. An `EventSink` is any function with one event as its argument.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

__all__ = [
    "Event",
    "EventSink",
    "OrphanRemoved",
    "Published",
    "Reclaimed",
    "RunFinished",
    "RunPhase",
    "RunRecovered",
    "SegmentSealed",
    "SetAside",
    "SideFileSetAside",
    "TailCut",
    "WriteRefused",
    "ignore_events",
]


@dataclass(frozen=True, slots=True)
class Event:
    """The root of all events; `log` is the directory of its log."""

    log: str


@dataclass(frozen=True, slots=True)
class SegmentSealed(Event):
    """A segment was sealed."""

    segment: str
    entries: int
    bytes: int

    def __str__(self) -> str:
        return f"{self.log}: sealed {self.segment} with {self.entries} entries, {self.bytes} bytes"


@dataclass(frozen=True, slots=True)
class TailCut(Event):
    """A crash has torn the end of the active segment; the torn bytes were cut."""

    segment: str
    offset: int
    bytes: int
    last_position: int

    def __str__(self) -> str:
        return (
            f"{self.log}: cut {self.bytes} torn bytes of {self.segment} at byte {self.offset}, "
            f"after position {self.last_position}"
        )


@dataclass(frozen=True, slots=True)
class OrphanRemoved(Event):
    """A file that no manifest and no journal names was removed."""

    name: str

    def __str__(self) -> str:
        return f"{self.log}: removed {self.name}, which belongs to no generation"


@dataclass(frozen=True, slots=True)
class SetAside(Event):
    """A segment with entries that the manifest does not name was renamed."""

    name: str

    def __str__(self) -> str:
        return (
            f"{self.log}: set {self.name} aside: it has entries, but the manifest, which is older, "
            "does not name it"
        )


@dataclass(frozen=True, slots=True)
class Published(Event):
    """A new generation of the manifest was published."""

    generation: int
    why: str

    def __str__(self) -> str:
        return f"{self.log}: generation {self.generation} published ({self.why})"


@dataclass(frozen=True, slots=True)
class Reclaimed(Event):
    """Retired files were deleted."""

    files: int
    bytes: int

    def __str__(self) -> str:
        return f"{self.log}: reclaimed {self.bytes} bytes in {self.files} files"


@dataclass(frozen=True, slots=True)
class WriteRefused(Event):
    """The file system refused a write or an fsync."""

    path: str
    error: str

    def __str__(self) -> str:
        return f"{self.log}: {self.path}: {self.error}"


@dataclass(frozen=True, slots=True)
class SideFileSetAside(Event):
    """A side file cannot be used and is rebuilt; its bytes are kept as `kept_as`."""

    path: str
    kept_as: str
    reason: str

    def __str__(self) -> str:
        return (
            f"{self.log}: side file {self.path} cannot be used and is rebuilt, "
            f"{f'kept as {self.kept_as}' if self.kept_as else 'not kept'}: "
            f"{self.reason}"
        )


@dataclass(frozen=True, slots=True)
class RunPhase(Event):
    """A compaction run entered a phase."""

    run_id: str
    phase: str

    def __str__(self) -> str:
        return f"{self.log}: run {self.run_id} is in {self.phase}"


@dataclass(frozen=True, slots=True)
class RunRecovered(Event):
    """An unfinished run was found and resumed or abandoned."""

    run_id: str
    phase: str
    action: str

    def __str__(self) -> str:
        return f"{self.log}: run {self.run_id} had stopped in {self.phase}: {self.action}"


@dataclass(frozen=True, slots=True)
class RunFinished(Event):
    """A compaction run ended; `summary` is its report in one line."""

    run_id: str
    summary: str

    def __str__(self) -> str:
        return f"{self.log}: run {self.run_id}: {self.summary}"


EventSink = Callable[[Event], None]


def ignore_events(event: Event) -> None:
    """A sink that drops events."""
