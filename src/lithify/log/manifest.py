r"""The manifest: the single record of which files belong to a log.

The file `MANIFEST` is replaced whole, by one rename, after everything it names is durable:

    lithify manifest 1 <crc: 8 hex digits> <length>\n      CRC-32C and length of what follows
    {JSON}\n

Each replacement is a **publish** and raises the generation by one. A manifest is immutable: a
reader keeps the one it began with, whatever is published meanwhile.

Fields
    kind, log_id        as in every segment header
    generation          1 when the log is created
    next_segment_id     never used before
    segments            of the log, in position order; the last one is active
    view                the compacted view: other segments, in position order, or null
    horizon             last position covered by compaction, -1 before the first run
    last_position       of the log at the time of the publish; a lower bound later
    synced_bytes        of the active segment, known durable at the time of the publish
    retired             files no longer in use but still on disk, each with the retiring generation
    last_run            the last compaction run that published; a resumed run checks it
    state               small facts of the store (JSON)
    dropped             last position dropped from the log's head; missing if none was

A segment may have a **dead set**: the entries and parts of entries that are dead but still in the
file (`dead_set/dead_set.py`). It is an immutable file of its own, named here with its CRC. The same
segment may be in both the log and the view, with different dead sets; it is retired when it is in
neither.

Segments are encoded as rows (`SEGMENT_COLUMNS`), so that a thousand of them parse in a few
milliseconds. A row ends with the flags of the segment's entries, if there are any.
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
    """A reference to the file of a dead set."""

    name: str
    entries: int
    """Number of wholly dead entries."""
    frame_bytes: int
    """Bytes of their frames, plus the dead shares of partly live entries."""
    file_bytes: int
    crc: int
    parts: int = 0
    """Number of partly live entries."""

    def to_row(self) -> list[object]:
        """Encode for JSON, without `parts` if it is zero."""
        row: list[object] = [self.name, self.entries, self.frame_bytes, self.file_bytes, self.crc]
        return [*row, self.parts] if self.parts else row


@dataclass(frozen=True, slots=True)
class SegmentRef:
    """A segment as named in the manifest. The counts of an active one are zero."""

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
    """Union of its entries' flags; may be a superset after a rewrite."""

    @property
    def live_entries(self) -> int:
        """Entries that are not wholly dead."""
        return self.entries - (self.dead.entries if self.dead else 0)

    @property
    def live_bytes(self) -> int:
        """Bytes of their frames."""
        return self.frame_bytes - (self.dead.frame_bytes if self.dead else 0)

    def sealed_by(self, footer: SegmentFooter, *, flags: int = 0) -> SegmentRef:
        """Return the sealed segment, with the counts of its footer."""
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
        """Encode in the order of `SEGMENT_COLUMNS`, followed by nonzero `flags`, for JSON."""
        row: list[object] = [getattr(self, column) for column in SEGMENT_COLUMNS[:-1]]
        row.append(None if self.dead is None else self.dead.to_row())
        return [*row, self.flags] if self.flags else row

    @classmethod
    def from_row(cls, row: list[Any]) -> SegmentRef:
        """Decode what `to_row` returned."""
        at = len(SEGMENT_COLUMNS) - 1
        if not at + 1 <= len(row) <= at + 2:
            raise ValueError(f"a segment's row has {len(row)} values")
        values = list(row)
        if row[at] is not None:
            values[at] = DeadRef(*row[at])
        # The columns are in the order of the fields; passing them by name would be slower.
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
    """The contents of one generation's manifest."""

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
        """The segment that receives appends."""
        return self.segments[-1]

    def all_segments(self) -> Iterator[SegmentRef]:
        """Segments of the log, then of the view."""
        yield from self.segments
        yield from self.view or ()

    def sizes(self) -> dict[str, int]:
        """Size of each file by name, without retired files."""
        sizes = {}
        for segment in self.all_segments():
            sizes[segment.name] = segment.file_bytes
            if segment.dead is not None:
                sizes[segment.dead.name] = segment.dead.file_bytes
        return sizes

    def to_bytes(self) -> bytes:
        """Encode as a file."""
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
        """Decode a file; raises on damage and on unknown versions."""
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
    """Read the current generation; `FileNotFoundError` if there is no log."""
    path = f"{directory}/{MANIFEST}"
    return Manifest.from_bytes(read_file(fs, path), path)


def write_manifest(fs: FileSystem, directory: str, manifest: Manifest) -> None:
    """Publish a manifest; the contents of the files it names must be durable.

    Their names are made durable here. Without the first fsync of the directory a crash could keep
    the rename of the manifest and lose the name of a file in it.
    """
    fs.sync_dir(directory)
    write_atomic(fs, f"{directory}/{MANIFEST}", manifest.to_bytes())
