"""Every file name below a Raft node's directory is made and parsed here.

    LOCK                                    held by the one process that runs the node
    NODE                                    who the node is
    MANIFEST                                which files must be there
    wal/0000000000000007.wal                the write-ahead log of all groups, file 7
    groups/GROUP/0000000000000003.segment   entries of one group; a symbolic link once they were
                                            merged into a lower segment
    groups/GROUP/…0003-…0004.compacting     target of a merge: the numbers of all its sources
    groups/GROUP/…0003.link                 a name on its way to …0003.segment
    groups/GROUP/…0003.repair               what is to replace a damaged …0003.segment
    groups/GROUP/snapshots/TERM_INDEX/      16 hexadecimal digits each
        snapshot                            the state
        live                                the indexes it still needs from the log
        place                               which of the member's own files came before it
    groups/GROUP/checkpoints/TERM_INDEX/    the same, of what may become a snapshot
    *.tmp                                   a replacement or a directory that did not finish

A group has three names. People say `orders`. Nodes say `orders@5f0c…`, its key: 16 digits that were
drawn when it was created, so that nothing of a group that was dropped is taken for one of the same
name that came later. Files, here and in the write-ahead log, are called by the key, and `~1`, `~2`…
if this node was a member before and has given its files back. No such name is used twice. The group
that nodes begin with has the key `default`: all of them must come to the same.

Names of one kind sort as their numbers do. Pure.
"""

from __future__ import annotations

import re

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

_GROUP = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_KEY = re.compile(rf"{_GROUP.pattern}(@[0-9a-f]{{16}})?")
_WAL = re.compile(r"(\d{16})\.wal")
_SEGMENT = re.compile(r"(\d{16})\.segment")
_REPAIR = re.compile(r"(\d{16})\.repair")
_LINK = re.compile(r"(\d{16})\.link")
_COMPACTING = re.compile(r"(\d{16}(?:-\d{16})*)\.compacting")
_SNAPSHOT = re.compile(r"([0-9a-f]{16})_([0-9a-f]{16})")


def check_group(group: str) -> str:
    """The name of a group, if it can be that of a directory too."""
    if len(group) > GROUP_CHARACTERS_MAX or not _GROUP.fullmatch(group):
        limit = f"1 to {GROUP_CHARACTERS_MAX} letters, digits, '_', '.' or '-'"
        raise InvalidInput(f"group {group!r} must have {limit}, the first a letter or digit")
    return group


def new_key(group: str, number: int) -> str:
    """The key of a new group, of a number below 2^64 that was drawn."""
    return f"{check_group(group)}@{number:016x}"


def is_drawn(key: str) -> bool:
    """Has no other group this key? All clusters begin with one that has the key `default`."""
    return "@" in key


def check_key(key: str) -> str:
    """A key that somebody else has sent, if it can be one."""
    check_group(group_of(key))
    if not _KEY.fullmatch(key):
        raise InvalidInput(f"{key!r} is no key of a group")
    return key


def files_name(key: str, times: int) -> str:
    """How a group's files are called on a node that was a member so many times before."""
    return f"{key}~{times}" if times else key


def key_of(files: str) -> str:
    """The key of the group whose files are called so."""
    return files.partition("~")[0]


def group_of(name: str) -> str:
    """What people call the group of a key, or of files."""
    return key_of(name).partition("@")[0]


def install_name(group: str, index: int) -> str:
    """Under which the write-ahead log keeps the live entries of a snapshot on its way to a group.

    No group can have such a name.
    """
    return f"{group}/{index}"


def wal_name(number: int) -> str:
    """A file of the write-ahead log."""
    return f"{number:016}.wal"


def parse_wal(name: str) -> int | None:
    """Its number; None if it is something else."""
    return _number(_WAL, name)


def segment_name(number: int) -> str:
    """A segment of a group."""
    return f"{number:016}.segment"


def parse_segment(name: str) -> int | None:
    """Its number; None if it is something else."""
    return _number(_SEGMENT, name)


def compacting_name(numbers: list[int]) -> str:
    """The target of a merge of these segments: 8 of them give 146 characters, 255 may be."""
    return "-".join(f"{number:016}" for number in numbers) + ".compacting"


def parse_compacting(name: str) -> list[int] | None:
    """The numbers of its sources; None if it is something else."""
    found = _COMPACTING.fullmatch(name)
    return None if found is None else [int(number) for number in found[1].split("-")]


def link_name(number: int) -> str:
    """What is to become a segment's name in one step."""
    return f"{number:016}.link"


def parse_link(name: str) -> int | None:
    """Its number; None if it is something else."""
    return _number(_LINK, name)


def repair_name(number: int) -> str:
    """What is to take the place of a damaged segment in one step."""
    return f"{number:016}.repair"


def parse_repair(name: str) -> int | None:
    """Its number; None if it is something else."""
    return _number(_REPAIR, name)


def snapshot_name(term: int, index: int) -> str:
    """The directory of a snapshot or checkpoint."""
    return f"{term:016x}_{index:016x}"


def parse_snapshot(name: str) -> tuple[int, int] | None:
    """Its (term, index); None if it is something else."""
    found = _SNAPSHOT.fullmatch(name)
    return None if found is None else (int(found[1], 16), int(found[2], 16))


def _number(pattern: re.Pattern[str], name: str) -> int | None:
    found = pattern.fullmatch(name)
    return None if found is None else int(found[1])
