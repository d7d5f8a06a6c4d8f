"""The names of all files below a Raft node's directory: built and parsed only here.

    LOCK                                    held by the one process that runs the node
    NODE                                    the node's identity and groups
    MANIFEST                                the files that must exist
    wal/0000000000000007.wal                the write-ahead log of all groups, file 7
    groups/GROUP/0000000000000003.segment   entries of one group; a symbolic link once they were
                                            merged into a lower segment
    groups/GROUP/…0003-…0004.compacting     target of a merge: the numbers of all its sources
    groups/GROUP/…0003.link                 a link that will be renamed to …0003.segment
    groups/GROUP/…0003.repair               the replacement of a damaged …0003.segment
    groups/GROUP/snapshots/TERM_INDEX/      16 hexadecimal digits each
        snapshot                            the state
        live                                the indexes it still needs from the log
        place                               which of the member's own files came before it
    groups/GROUP/checkpoints/TERM_INDEX/    the same, of a state that may become a snapshot
    *.tmp                                   an unfinished replacement or directory

A group has three names. Users say `orders`. Nodes use the key `orders@5f0c…`: 16 random digits are
chosen when the group is created, so that data of a dropped group is never taken for a later one of
the same name. Files, here and in the write-ahead log, are named by the key, with `~1`, `~2`… if
this node was a member before and has deleted its files. No such name is used twice. The first group
of a cluster has the key `default`: all nodes must choose the same.

Names of one kind sort like their numbers. Pure.
"""

from __future__ import annotations

import re
from functools import lru_cache

from lithify.errors import InvalidInput

__all__ = [
    "CHECKPOINTS",
    "GROUPS",
    "LIVE",
    "LOCK",
    "MANIFEST",
    "NODE",
    "PLACE",
    "SNAPSHOT",
    "SNAPSHOTS",
    "WAL",
    "check_group",
    "check_key",
    "compacting_name",
    "files_name",
    "group_of",
    "install_name",
    "is_drawn",
    "key_of",
    "link_name",
    "new_key",
    "parse_compacting",
    "parse_link",
    "parse_repair",
    "parse_segment",
    "parse_snapshot",
    "parse_wal",
    "repair_name",
    "segment_name",
    "snapshot_name",
    "wal_name",
]

LOCK = "LOCK"
NODE = "NODE"
MANIFEST = "MANIFEST"
WAL = "wal"
GROUPS = "groups"
SNAPSHOTS = "snapshots"
CHECKPOINTS = "checkpoints"
SNAPSHOT = "snapshot"
LIVE = "live"
PLACE = "place"

GROUP_CHARACTERS_MAX = 64
NAMES_CACHED = 4096
"""Names of groups; a busy node asks for the same few with each message."""

_GROUP = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_KEY = re.compile(rf"{_GROUP.pattern}(@[0-9a-f]{{16}})?")
_WAL = re.compile(r"(\d{16})\.wal")
_SEGMENT = re.compile(r"(\d{16})\.segment")
_REPAIR = re.compile(r"(\d{16})\.repair")
_LINK = re.compile(r"(\d{16})\.link")
_COMPACTING = re.compile(r"(\d{16}(?:-\d{16})*)\.compacting")
_SNAPSHOT = re.compile(r"([0-9a-f]{16})_([0-9a-f]{16})")


def check_group(group: str) -> str:
    """The name of a group, if a directory can have it too."""
    if len(group) > GROUP_CHARACTERS_MAX or not _GROUP.fullmatch(group):
        limit = f"1 to {GROUP_CHARACTERS_MAX} letters, digits, '_', '.' or '-'"
        raise InvalidInput(f"group {group!r} must have {limit}, the first a letter or digit")
    return group


def new_key(group: str, number: int) -> str:
    """The key of a new group, from a random number below 2^64."""
    return f"{check_group(group)}@{number:016x}"


def is_drawn(key: str) -> bool:
    """Is the key random, so that no other group has it? The first group of a cluster has none."""
    return "@" in key


def check_key(key: str) -> str:
    """A key that another node has sent, if it is valid."""
    check_group(group_of(key))
    if not _KEY.fullmatch(key):
        raise InvalidInput(f"{key!r} is no key of a group")
    return key


def files_name(key: str, times: int) -> str:
    """The name of a group's files on a node that was a member this number of times before."""
    return f"{key}~{times}" if times else key


@lru_cache(NAMES_CACHED)
def key_of(files: str) -> str:
    """The key of the group with these files."""
    return files.partition("~")[0]


@lru_cache(NAMES_CACHED)
def group_of(name: str) -> str:
    """The user's name of the group with this key, or these files."""
    return key_of(name).partition("@")[0]


def install_name(group: str, index: int) -> str:
    """The name in the write-ahead log of the live entries of a snapshot that is being received.

    No group can have this name.
    """
    return f"{group}/{index}"


def wal_name(number: int) -> str:
    """A file of the write-ahead log."""
    return f"{number:016}.wal"


def parse_wal(name: str) -> int | None:
    """The number of the file; None if it is another file."""
    return _number(_WAL, name)


def segment_name(number: int) -> str:
    """A segment of a group."""
    return f"{number:016}.segment"


def parse_segment(name: str) -> int | None:
    """The number of the segment; None if it is another file."""
    return _number(_SEGMENT, name)


def compacting_name(numbers: list[int]) -> str:
    """The target of a merge of these segments: 8 of them give 146 characters of 255."""
    return "-".join(f"{number:016}" for number in numbers) + ".compacting"


def parse_compacting(name: str) -> list[int] | None:
    """The numbers of the sources; None if it is another file."""
    found = _COMPACTING.fullmatch(name)
    return None if found is None else [int(number) for number in found[1].split("-")]


def link_name(number: int) -> str:
    """The temporary name of a link, before it is renamed to a segment's name."""
    return f"{number:016}.link"


def parse_link(name: str) -> int | None:
    """The number of the segment; None if it is another file."""
    return _number(_LINK, name)


def repair_name(number: int) -> str:
    """The replacement of a damaged segment, before it is renamed."""
    return f"{number:016}.repair"


def parse_repair(name: str) -> int | None:
    """The number of the segment; None if it is another file."""
    return _number(_REPAIR, name)


def snapshot_name(term: int, index: int) -> str:
    """The directory of a snapshot or checkpoint."""
    return f"{term:016x}_{index:016x}"


def parse_snapshot(name: str) -> tuple[int, int] | None:
    """(term, index); None if it is another file."""
    found = _SNAPSHOT.fullmatch(name)
    return None if found is None else (int(found[1], 16), int(found[2], 16))


def _number(pattern: re.Pattern[str], name: str) -> int | None:
    found = pattern.fullmatch(name)
    return None if found is None else int(found[1])
