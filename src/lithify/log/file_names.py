"""Every file name in a log's directory is made and parsed here.

LOCK                       held by the one process that writes
MANIFEST                   the one truth: which files belong to the log
JOURNAL                    progress of a compaction run; exists only while one is unfinished
HISTORY                    reports of finished runs
ERASE                      progress of erasing, and the frames that are being written over
REPLICATION                how far a store has read its replicas, and they it
CREATING                   mark: the directory is not finished, and nothing in it acknowledged
DELETED                    mark: the directory is deleted; what is left of it may be removed
000000000007.seg           segment 7, written by appends
000000000009-5f3a.seg      segment 9, written by a rewrite; attempt 5f3a of it
000000000007-5f3a.dead     dead set of segment 7, as run 5f3a judged it
000000000007.keys          key index of segment 7 (side file: may be rebuilt at any time)
000000000009-5f3a.keys     key index of segment 9, attempt 5f3a
5f3a9c….pin                a reading process's claim on a generation
PACE.tmp                   the rate of the run that is going on, for its tasks
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
"""Removed at the next open, as all that ends so."""
REPLICATION = "REPLICATION"
CREATING = "CREATING"
DELETED = "DELETED"


class FileKind(StrEnum):
    """What a file is, told from its name alone."""

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
}
_SUFFIXES = {"seg": FileKind.SEGMENT, "keys": FileKind.KEY_INDEX, "dead": FileKind.DEAD_SET}
_NUMBERED = re.compile(r"(\d{12})(?:-([0-9a-z]+))?\.(seg|keys|dead)")
_ASIDE = re.compile(r"\d{12}\.seg\.aside\d*")


def segment_name(segment_id: int, attempt: str = "") -> str:
    """The name of a segment; `attempt` makes that of a rewrite unique."""
    return f"{_stem(segment_id, attempt)}.seg"


def key_index_name(segment: str) -> str:
    """The key index that belongs to the segment named `segment`."""
    return segment.removesuffix(".seg") + ".keys"


def dead_set_name(segment_id: int, run_id: str) -> str:
    """The dead set of a segment, as a run judged it."""
    return f"{_stem(segment_id, run_id)}.dead"


def pin_name(token: str) -> str:
    """A reading process's pin."""
    return f"{token}.pin"


def parse_name(name: str) -> FileName:
    """What a name says; `FOREIGN` if it is none of ours."""
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
    """Is it a segment that recovery has set aside? No log reads or removes it."""
    return _ASIDE.fullmatch(name) is not None


def _stem(segment_id: int, attempt: str) -> str:
    return f"{segment_id:012d}-{attempt}" if attempt else f"{segment_id:012d}"
