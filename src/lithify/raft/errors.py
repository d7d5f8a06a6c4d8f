"""Errors of a Raft node, beyond those that every log raises.

LithifyError
├── GapInLog        an entry that does not follow the one before it
├── EntryGone       an index that is compacted away
├── EntryUnreadable an entry in a damaged place of a file, or that the disk does not read
├── EntriesLost     entries that must be there and are not
├── GroupAbsent     a group that has no member on this node
├── ClientTooSlow   a client that does not take what it is sent
├── OutcomeUnknown  nobody here knows whether a proposal was done
└── CreationUnknown a group was begun, and not all of its members were seen to join
"""

from __future__ import annotations

from lithify.errors import NOT_FOUND, OUTCOME_UNKNOWN, LithifyError

__all__ = [
    "ClientTooSlow",
    "CreationUnknown",
    "EntriesLost",
    "EntryGone",
    "EntryUnreadable",
    "GapInLog",
    "GroupAbsent",
    "OutcomeUnknown",
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


class EntryUnreadable(LithifyError):
    """An entry in a damaged place of a file, or that the disk does not read; others may have it."""

    def __init__(self, index: int, path: str, cause: Exception) -> None:
        self.index = index
        self.path = path
        self.cause = cause
        super().__init__(f"entry {index} cannot be read from {path}: {cause}")


class EntriesLost(LithifyError):
    """Entries that must be there and are not; the log is left as it is."""

    def __init__(self, group: str, index: int, what: str) -> None:
        self.group = group
        self.index = index
        self.what = what
        super().__init__(f"group {group}: entry {index} is lost: {what}")


class GroupAbsent(LithifyError):
    """A group that has no member on this node."""

    exit_code = NOT_FOUND

    def __init__(self, group: str, node: str) -> None:
        self.group = group
        self.node = node
        super().__init__(f"there is no group {group!r} on node {node}")


class ClientTooSlow(LithifyError):
    """A client that does not take what it is sent."""

    def __init__(self, peer: str, limit_bytes: int) -> None:
        self.peer = peer
        self.limit_bytes = limit_bytes
        super().__init__(f"client {peer} has {limit_bytes} bytes to take and does not")


class OutcomeUnknown(LithifyError):
    """A proposal may have been done or not: this member was unseated, or a snapshot has passed."""

    exit_code = OUTCOME_UNKNOWN

    def __init__(self, group: str, index: int) -> None:
        self.group = group
        self.index = index
        super().__init__(f"group {group}: nobody here knows what became of proposal {index}")


class CreationUnknown(LithifyError):
    """A group was begun; somebody has changed it before all of its members had joined."""

    exit_code = OUTCOME_UNKNOWN

    def __init__(self, group: str, what: str) -> None:
        self.group = group
        self.what = what
        super().__init__(f"group {group} was begun, but {what} while it was created")
