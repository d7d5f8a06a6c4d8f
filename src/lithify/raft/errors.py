"""Errors of a Raft node, beyond those that every log raises.

LithifyError
├── GapInLog        an entry that does not follow the one before it
├── EntryGone       an index that is compacted away
├── EntriesLost     entries that must be there and are not
├── GroupAbsent     a group that has no member on this node
├── ClientTooSlow   a client that does not take what it is sent
├── UnknownGroup    files of a group that the file NODE does not name
└── OutcomeUnknown  nobody here knows whether a proposal was done
"""

from __future__ import annotations

from lithify.errors import CONFLICT, LithifyError

__all__ = [
    "ClientTooSlow",
    "EntriesLost",
    "EntryGone",
    "GapInLog",
    "GroupAbsent",
    "OutcomeUnknown",
    "UnknownGroup",
]


class GapInLog(LithifyError):
    """An entry that does not follow the one before it."""

    def __init__(self, group: str, expected: int, found: int) -> None:
        self.group = group
        self.expected = expected
        self.found = found
        super().__init__(f"group {group}: entry {found} was written, {expected} was expected")


class EntryGone(LithifyError):
    """An index that is compacted away: nothing needs it any more."""

    def __init__(self, group: str, index: int) -> None:
        self.group = group
        self.index = index
        super().__init__(f"group {group}: entry {index} is gone")


class EntriesLost(LithifyError):
    """Entries that must be there and are not; the log is left as it is."""

    def __init__(self, group: str, index: int, what: str) -> None:
        self.group = group
        self.index = index
        self.what = what
        super().__init__(f"group {group}: entry {index} is lost: {what}")


class GroupAbsent(LithifyError):
    """A group that has no member on this node."""

    def __init__(self, group: str, node: str) -> None:
        self.group = group
        self.node = node
        super().__init__(f"there is no group {group!r} on node {node}")


class UnknownGroup(LithifyError):
    """Files of a group that the node neither has nor dropped: its file NODE is an older one."""

    exit_code = CONFLICT

    def __init__(self, directory: str) -> None:
        self.directory = directory
        super().__init__(
            f"{directory} holds a group that the file NODE does not name and that was not dropped: "
            "NODE is older than the data. Put the newer one back, or move the directory away"
        )


class ClientTooSlow(LithifyError):
    """A client that does not take what it is sent."""

    def __init__(self, peer: str, limit_bytes: int) -> None:
        self.peer = peer
        self.limit_bytes = limit_bytes
        super().__init__(f"client {peer} has {limit_bytes} bytes to take and does not")


class OutcomeUnknown(LithifyError):
    """A proposal may have been done or not: this member was unseated, or a snapshot has passed."""

    def __init__(self, group: str, index: int) -> None:
        self.group = group
        self.index = index
        super().__init__(f"group {group}: nobody here knows what became of proposal {index}")
