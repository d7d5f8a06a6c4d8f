r"""The manifest: the one truth about which files belong to a log.

The file `MANIFEST` is replaced whole, by one rename, after everything it names is durable:

    lithify manifest 1 <crc: 8 hex digits> <length>\n      CRC-32C and length of what follows
    {JSON}\n

Each replacement is a **publish** and raises the generation by one. A manifest is a value: readers
keep the one they began with and go on in it whatever is published meanwhile.

Fields
    kind, log_id        as in every segment header
    generation          1 when the log is created
    next_segment_id     never used before
    segments            the log, in position order; the last one is active
    view                the compacted view: other segments, in position order, or null
    horizon             last position that compaction has judged, -1 before the first run
    last_position       of the log when this was published; a lower bound of the truth
    synced_bytes        of the active segment, known durable when this was published
    retired             files published away but still on disk, with the generation that did it
    last_run            the compaction run that published last; tells a resumed run that it did
    state               room for the store's own small facts (JSON)
    dropped             last position that was dropped from the log's head; not there if none was

A segment may carry a **dead set**: what is dead but still in the file, entries and parts of entries
(`deadset/dead_set.py`). It is a file of its own, immutable, named here with its CRC. The same
segment may stand in the log and in the view, with different dead sets; it is retired when it stands
in neither.

Segments are rows (`SEGMENT_COLUMNS`), so that a thousand of them parse in a few milliseconds.
Behind the columns stand the flags that its entries were appended with, where there are any.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from lithify.checksum import crc32c
from lithify.errors import DamagedFile, UnsupportedVersion
from lithify.fs import read_file, write_atomic
from lithify.log.file_names import MANIFEST
from lithify.positions import NO_POSITION

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from lithify.fs import FileSystem
    from lithify.log.segments.segment_file import SegmentFooter

__all__ = [
    "MANIFEST_VERSION",
    "SEGMENT_COLUMNS",
    "DeadRef",
    "Manifest",
    "Retired",
    "SegmentRef",
    "read_manifest",
    "write_manifest",
]

MANIFEST_VERSION = 1
_FIRST_LINE = re.compile(rb"lithify manifest (\d{1,9}) ([0-9a-f]{8}) (\d{1,12})")


@dataclass(frozen=True, slots=True)
class DeadRef:
    """A dead set's file."""

    name: str
    entries: int
    """Entries of the segment that it names as wholly dead."""
    frame_bytes: int
    """Bytes their frames take in the segment, and the dead shares of partly live entries."""
    file_bytes: int
    crc: int
    parts: int = 0
    """Partly live entries in it."""

    def to_row(self) -> list[object]:
        """Its values in their order, for JSON; without `parts` where there are none."""
        row: list[object] = [self.name, self.entries, self.frame_bytes, self.file_bytes, self.crc]
        return [*row, self.parts] if self.parts else row


@dataclass(frozen=True, slots=True)
class SegmentRef:
    """A segment as the manifest knows it. An active one has its counts at zero."""

    id: int
    name: str
    first_position: int
    """A lower bound: the segment's first frame may be later."""
    last_position: int = NO_POSITION
    entries: int = 0
    frame_bytes: int = 0
    file_bytes: int = 0
    time_min: int = 0
    time_max: int = 0
    sealed: bool = False
    dead: DeadRef | None = None
    flags: int = 0
    """Those that its entries were appended with, all in one; or more, after a rewrite."""

    @property
    def live_entries(self) -> int:
        """Entries that no dead set names."""
        return self.entries - (self.dead.entries if self.dead else 0)

    @property
    def live_bytes(self) -> int:
        """Bytes of their frames."""
        return self.frame_bytes - (self.dead.frame_bytes if self.dead else 0)

    def sealed_by(self, footer: SegmentFooter, *, flags: int = 0) -> SegmentRef:
        """The same segment with the counts of its footer, sealed."""
        return replace(
            self,
            last_position=footer.last_position,
            entries=footer.entries,
            frame_bytes=footer.frame_bytes,
            file_bytes=footer.file_bytes,
            time_min=footer.time_min,
            time_max=footer.time_max,
            sealed=True,
            flags=flags,
        )

    def to_row(self) -> list[object]:
        """Its values in the order of `SEGMENT_COLUMNS`, and `flags` if there are any, for JSON."""
        row: list[object] = [getattr(self, column) for column in SEGMENT_COLUMNS[:-1]]
        row.append(None if self.dead is None else self.dead.to_row())
        return [*row, self.flags] if self.flags else row

    @classmethod
    def from_row(cls, row: list[Any]) -> SegmentRef:
        """Read back what `to_row` gave."""
        at = len(SEGMENT_COLUMNS) - 1
        if not at + 1 <= len(row) <= at + 2:
            raise ValueError(f"a segment's row has {len(row)} values")
        values = list(row)
        if row[at] is not None:
            values[at] = DeadRef(*row[at])
        # The columns are the fields in their order; by name it would take longer.
        return cls(*values)


SEGMENT_COLUMNS = (
    "id",
    "name",
    "first_position",
    "last_position",
    "entries",
    "frame_bytes",
    "file_bytes",
    "time_min",
    "time_max",
    "sealed",
    "dead",
)


@dataclass(frozen=True, slots=True)
class Retired:
    """A file that generation `generation` no longer names."""

    name: str
    file_bytes: int
    generation: int


@dataclass(frozen=True, slots=True)
class Manifest:
    """One generation."""

    kind: str
    log_id: bytes
    generation: int
    next_segment_id: int
    segments: tuple[SegmentRef, ...]
    view: tuple[SegmentRef, ...] | None = None
    horizon: int = NO_POSITION
    last_position: int = NO_POSITION
    synced_bytes: int = 0
    retired: tuple[Retired, ...] = ()
    last_run: str = ""
    state: Mapping[str, Any] = field(default_factory=dict)
    dropped: int = NO_POSITION

    @property
    def active(self) -> SegmentRef:
        """The segment that is appended to."""
        return self.segments[-1]

    def all_segments(self) -> Iterator[SegmentRef]:
        """Those of the log, then those of the view."""
        yield from self.segments
        yield from self.view or ()

    def sizes(self) -> dict[str, int]:
        """Every file it names as part of the log, retired ones not, with its size."""
        sizes = {}
        for segment in self.all_segments():
            sizes[segment.name] = segment.file_bytes
            if segment.dead is not None:
                sizes[segment.dead.name] = segment.dead.file_bytes
        return sizes

    def to_bytes(self) -> bytes:
        """The file's contents."""
        value = {
            "kind": self.kind,
            "log_id": self.log_id.hex(),
            "generation": self.generation,
            "next_segment_id": self.next_segment_id,
            "horizon": self.horizon,
            "last_position": self.last_position,
            "synced_bytes": self.synced_bytes,
            "segment_columns": SEGMENT_COLUMNS,
            "segments": [s.to_row() for s in self.segments],
            "view": None if self.view is None else [s.to_row() for s in self.view],
            "retired": [[r.name, r.file_bytes, r.generation] for r in self.retired],
            "last_run": self.last_run,
            "state": self.state,
        }
        if self.dropped != NO_POSITION:
            value["dropped"] = self.dropped
        body = json.dumps(value, separators=(",", ":"), ensure_ascii=True).encode() + b"\n"
        first = f"lithify manifest {MANIFEST_VERSION} {crc32c(body):08x} {len(body)}\n"
        return first.encode() + body

    @classmethod
    def from_bytes(cls, data: bytes, path: str) -> Manifest:
        """Read back; damage and unknown versions raise."""
        line, _, body = data.partition(b"\n")
        match = _FIRST_LINE.fullmatch(line)
        if match is None:
            raise DamagedFile(path, 0, f"begins with {line[:40]!r}, not as a manifest")
        version, crc, length = int(match[1]), int(match[2], 16), int(match[3])
        if version != MANIFEST_VERSION:
            raise UnsupportedVersion(path, version, MANIFEST_VERSION)
        if len(body) != length:
            raise DamagedFile(path, 0, f"has {len(body)} bytes after the first line, not {length}")
        if crc32c(body) != crc:
            raise DamagedFile(path, 0, "CRC-32C does not match")
        value = json.loads(body)
        view = value["view"]
        return cls(
            kind=value["kind"],
            log_id=bytes.fromhex(value["log_id"]),
            generation=value["generation"],
            next_segment_id=value["next_segment_id"],
            segments=tuple(map(SegmentRef.from_row, value["segments"])),
            view=None if view is None else tuple(map(SegmentRef.from_row, view)),
            horizon=value["horizon"],
            last_position=value["last_position"],
            synced_bytes=value["synced_bytes"],
            retired=tuple(Retired(*row) for row in value["retired"]),
            last_run=value["last_run"],
            state=value["state"],
            dropped=value.get("dropped", NO_POSITION),
        )


def read_manifest(fs: FileSystem, directory: str) -> Manifest:
    """The generation that rules now; `FileNotFoundError` if there is no log."""
    path = f"{directory}/{MANIFEST}"
    return Manifest.from_bytes(read_file(fs, path), path)


def write_manifest(fs: FileSystem, directory: str, manifest: Manifest) -> None:
    """Publish. The files it names must be durable already; their names are made so here.

    Without the first fsync of the directory a crash could keep the rename of the manifest and
    forget a file that it names.
    """
    fs.sync_dir(directory)
    write_atomic(fs, f"{directory}/{MANIFEST}", manifest.to_bytes())
