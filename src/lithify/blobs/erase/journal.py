"""The file `ERASE` of a blob store: the progress of erasing, and the batch being written.

One checked line (`fs/checked_lines.py`), replaced by one rename:

    {"version":1,
     "done":{"as_of_ms":…,"deleted_before_ms":…,"last_position":…,
             "segments":[["….seg","….dead"],…]},
     "now":{…the same…,"first":0,"stop":256,"after":4711},
     "frames":[["….seg",4096,"<header>",[[48,52],[90,5000]]],…]}

done
    The last complete round: the time by which it judged, the position up to which it saw
    records, and the segments, each with its dead set, that it scanned. Null before the first.
now
    The round in progress: in addition the range of buckets, and the put up to which it has
    processed the range. Null between two rounds.
frames
    The frames being overwritten (`log/segments/overwrite.py`): any of them may be torn. Opening the
    store overwrites them again before the store is read.

A damaged file is set aside, and erasing begins with a new round. If it was damaged while frames
were being overwritten, those frames are reported as damaged by every read.

Called by `erase.py`, and by `blobs/offline/verify.py`, which only reads it.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from lithify.errors import Corrupt, DamagedFile, UnsupportedVersion, WriteFailed
from lithify.events import ignore_events
from lithify.fs import write_atomic
from lithify.fs.checked_lines import encode_line, read_lines
from lithify.log.file_names import ERASE
from lithify.log.segments.overwrite import Erasure
from lithify.log.side_files import check_is_unusable, set_aside
from lithify.positions import NO_POSITION

if TYPE_CHECKING:
    from lithify.events import EventSink
    from lithify.fs import FileSystem
    from lithify.log.manifest import Manifest

__all__ = [
    "ERASE_VERSION",
    "EraseRound",
    "EraseState",
    "SegmentKey",
    "keys_of",
    "load_erase",
    "read_erase",
    "write_erase",
]

ERASE_VERSION = 1

SegmentKey = tuple[str, str]
"""(segment, dead set or empty): identifies what a round has scanned."""


@dataclass(frozen=True, slots=True)
class EraseRound:
    """One scan of all sealed segments."""

    as_of_ms: int
    deleted_before_ms: int
    """Blobs with an older delete are erased."""
    last_position: int
    """Of the log when the round began."""
    segments: tuple[SegmentKey, ...]
    first: int = 0
    """The range of buckets in progress."""
    stop: int = 0
    after: int = NO_POSITION
    """The puts of the range up to this position are processed."""


@dataclass(frozen=True, slots=True)
class EraseState:
    """The contents of the file."""

    done: EraseRound | None = None
    now: EraseRound | None = None
    frames: tuple[Erasure, ...] = ()


def keys_of(manifest: Manifest) -> tuple[SegmentKey, ...]:
    """The sealed segments of a generation."""
    return tuple(
        (segment.name, segment.dead.name if segment.dead else "")
        for segment in manifest.segments
        if segment.sealed
    )


def write_erase(fs: FileSystem, directory: str, state: EraseState) -> None:
    """Replace the file; durable when it returns."""
    value = {
        "version": ERASE_VERSION,
        "done": None if state.done is None else asdict(state.done),
        "now": None if state.now is None else asdict(state.now),
        "frames": [(f.segment, f.offset, f.header.hex(), f.zeros) for f in state.frames],
    }
    path = f"{directory}/{ERASE}"
    try:
        write_atomic(fs, path, encode_line(json.dumps(value, separators=(",", ":"))))
    except OSError as error:
        raise WriteFailed(path, error) from error


def read_erase(fs: FileSystem, directory: str) -> EraseState:
    """Read the file; damage and unknown versions raise."""
    path = f"{directory}/{ERASE}"
    if not fs.exists(path):
        return EraseState()
    lines, _ = read_lines(fs, path)
    if len(lines) != 1:
        raise DamagedFile(path, 0, f"has {len(lines)} whole lines, must have one")
    value = json.loads(lines[0][1])
    if value["version"] != ERASE_VERSION:
        raise UnsupportedVersion(path, value["version"], ERASE_VERSION)
    frames = tuple(
        Erasure(segment, offset, bytes.fromhex(header), tuple((a, b) for a, b in zeros))
        for segment, offset, header, zeros in value["frames"]
    )
    return EraseState(_round(value["done"]), _round(value["now"]), frames)


def load_erase(fs: FileSystem, directory: str, events: EventSink = ignore_events) -> EraseState:
    """Read the file. If it cannot be used, it is set aside and erasing starts over."""
    try:
        return read_erase(fs, directory)
    except (Corrupt, UnsupportedVersion, OSError) as error:
        check_is_unusable(error)
        set_aside(fs, f"{directory}/{ERASE}", str(error), events)
        with suppress(WriteFailed):
            write_erase(fs, directory, EraseState())
        return EraseState()


def _round(value: dict[str, Any] | None) -> EraseRound | None:
    if value is None:
        return None
    keys = tuple((segment, dead) for segment, dead in value.pop("segments"))
    return EraseRound(segments=keys, **value)
