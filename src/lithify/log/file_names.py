"""File names in a log's directory, built and parsed.

LOCK                       locked by the process that writes
MANIFEST                   which files belong to the log
JOURNAL                    progress of a compaction run; exists only while a run is unfinished
HISTORY                    reports of finished runs
ERASE                      progress of erasing, and the frames being overwritten
REPLICATION                how far a store has read its replicas, and the replicas the store
CREATING                   mark: the directory is not finished; nothing in it is acknowledged
DELETED                    mark: the directory is deleted; its remains may be removed
OBJECT                     of which object of the catalog the directory has the data
000000000007.seg           segment 7, written by appends
000000000009-5f3a.seg      segment 9, written by attempt 5f3a of a rewrite
000000000007-5f3a.dead     dead set of segment 7, written by run 5f3a
000000000007.keys          key index of segment 7 (side file: may be rebuilt at any time)
000000000009-5f3a.keys     key index of segment 9, attempt 5f3a
5f3a9c….pin                pin of a reading process on a generation
PACE.tmp                   current rate of the run in progress, for its tasks
000000000007.seg.aside     a segment with entries that the manifest does not name, set aside
*.tmp                      an atomic replacement that did not finish
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

__all__ = [
    "CREATING",
    "DELETED",
    "ERASE",
    "HISTORY",
    "JOURNAL",
    "LOCK",
    "MANIFEST",
    "OBJECT",
    "PACE",
    "REPLICATION",
    "FileKind",
    "FileName",
    "dead_set_name",
    "is_set_aside",
    "key_index_name",
    "parse_name",
    "pin_name",
    "segment_name",
]

LOCK = "LOCK"
MANIFEST = "MANIFEST"
JOURNAL = "JOURNAL"
HISTORY = "HISTORY"
ERASE = "ERASE"
PACE = "PACE.tmp"
"""Removed at the next open, like every `.tmp` file."""
REPLICATION = "REPLICATION"
CREATING = "CREATING"
DELETED = "DELETED"
OBJECT = "OBJECT"


class FileKind(StrEnum):
    """The kind of a file, derived from its name alone."""

    LOCK = "lock"
    MANIFEST = "manifest"
    JOURNAL = "journal"
    HISTORY = "history"
    ERASE = "erase"
    REPLICATION = "replication"
    MARK = "mark"
    SEGMENT = "segment"
    REWRITTEN = "rewritten segment"
    DEAD_SET = "dead set"
    KEY_INDEX = "key index"
    PIN = "pin"
    TEMPORARY = "temporary"
    FOREIGN = "foreign"


@dataclass(frozen=True, slots=True)
class FileName:
    """A parsed name; `segment_id` is -1 where the file belongs to no segment."""

    name: str
    kind: FileKind
    segment_id: int = -1
    attempt: str = ""


_FIXED = {
    LOCK: FileKind.LOCK,
    MANIFEST: FileKind.MANIFEST,
    JOURNAL: FileKind.JOURNAL,
    HISTORY: FileKind.HISTORY,
    ERASE: FileKind.ERASE,
    REPLICATION: FileKind.REPLICATION,
    CREATING: FileKind.MARK,
    DELETED: FileKind.MARK,
    OBJECT: FileKind.MARK,
}
_SUFFIXES = {"seg": FileKind.SEGMENT, "keys": FileKind.KEY_INDEX, "dead": FileKind.DEAD_SET}
_NUMBERED = re.compile(r"(\d{12})(?:-([0-9a-z]+))?\.(seg|keys|dead)")
_ASIDE = re.compile(r"\d{12}\.seg\.aside\d*")


def segment_name(segment_id: int, attempt: str = "") -> str:
    """The name of a segment; `attempt` makes the name of a rewritten one unique."""
    return f"{_stem(segment_id, attempt)}.seg"


def key_index_name(segment: str) -> str:
    """The name of the key index of the segment file `segment`."""
    return segment.removesuffix(".seg") + ".keys"


def dead_set_name(segment_id: int, run_id: str) -> str:
    """The name of the dead set that a run wrote for a segment."""
    return f"{_stem(segment_id, run_id)}.dead"


def pin_name(token: str) -> str:
    """The name of a reading process's pin."""
    return f"{token}.pin"


def parse_name(name: str) -> FileName:
    """Parse a name; the kind is `FOREIGN` if it is not a file of a log."""
    if name in _FIXED:
        return FileName(name, _FIXED[name])
    if name.endswith(".tmp"):
        return FileName(name, FileKind.TEMPORARY)
    if name.endswith(".pin"):
        return FileName(name, FileKind.PIN)
    match = _NUMBERED.fullmatch(name)
    if match is None:
        return FileName(name, FileKind.FOREIGN)
    segment_id, attempt, suffix = int(match[1]), match[2] or "", match[3]
    kind = _SUFFIXES[suffix]
    if kind is FileKind.SEGMENT and attempt:
        kind = FileKind.REWRITTEN
    return FileName(name, kind, segment_id, attempt)


def is_set_aside(name: str) -> bool:
    """Is it a segment that recovery set aside? No log reads or removes it."""
    return _ASIDE.fullmatch(name) is not None


def _stem(segment_id: int, attempt: str) -> str:
    return f"{segment_id:012d}-{attempt}" if attempt else f"{segment_id:012d}"
