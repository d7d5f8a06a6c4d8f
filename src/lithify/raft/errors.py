"""Errors of a Raft node, beyond those that every log raises.

LithifyError
├── GapInLog        an entry that does not follow the one before it
├── EntryDeleted    an index that is compacted away
├── EntryUnreadable an entry in a damaged place of a file, or that the disk cannot read
├── EntriesLost     entries that must be there and are not
├── FilesLost       files that the manifest names and that are gone (a `MissingFile`)
├── GroupAbsent     a group that has no member on this node
├── ClientTooSlow   a client that does not read its messages
├── MemberAbsent    a node that is to be removed is no member
├── MemberNotReached  a node that is to be added is not at its address
├── ForeignGroup    a node that is to be added has a group of that name from elsewhere
├── MemberReadsOnly  a request that other members must agree to, without an address for them
├── MemberAddressDiffers  a member has another address than the given one
├── NotTransferred  another member leads than the one that was to lead
├── LearnerSilent   a node that was added does not answer
├── LearnersNotPromoted  a node that was added is a learner, and no voter yet
├── OutcomeUnknown  a proposal that may have been done or not
├── AddressesNotRecorded  the disk has refused the addresses of members
├── CreationUnknown a group was begun, and not all of its members were seen to join
├── NoSuchDirectory a directory to be read does not exist
└── UnknownGroup    files of a group that the file NODE does not name
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lithify.errors import Corrupt, LithifyError, MissingFile
from lithify.exit_codes import CONFLICT, FAILED, NOT_FOUND, OUTCOME_UNKNOWN, UNREACHABLE

if TYPE_CHECKING:
    from collections.abc import Collection

__all__ = [
    "AddressesNotRecorded",
    "ClientTooSlow",
    "CreationUnknown",
    "EntriesLost",
    "EntryDeleted",
    "EntryUnreadable",
    "FilesLost",
    "ForeignGroup",
    "GapInLog",
    "GroupAbsent",
    "LearnerSilent",
    "LearnersNotPromoted",
    "MemberAbsent",
    "MemberAddressDiffers",
    "MemberNotReached",
    "MemberReadsOnly",
    "NoSuchDirectory",
    "NotTransferred",
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


class EntryDeleted(LithifyError):
    """An index that is compacted away: nothing needs it."""

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
    """Entries that must exist are missing; the log is not changed."""

    def __init__(self, group: str, index: int, what: str) -> None:
        self.group = group
        self.index = index
        self.what = what
        super().__init__(f"group {group}: entry {index} is lost: {what}")


class FilesLost(MissingFile):
    """A file of a node's directory is gone, and with it perhaps votes and acknowledged entries."""

    def __init__(self, path: str, what: str) -> None:
        then = "the node does not start, because it may have forgotten what it promised"
        how = "put the file back, or replace the node (docs/runbooks.md, damaged disk)"
        Corrupt.__init__(self, path, 0, f"{what}; {then}: {how}")


class GroupAbsent(LithifyError):
    """A group that has no member on this node."""

    exit_code = NOT_FOUND

    def __init__(self, group: str, node: str) -> None:
        self.group = group
        self.node = node
        super().__init__(f"there is no group {group!r} on node {node}")


class NoSuchDirectory(LithifyError):
    """A backup or a data directory to be read does not exist."""

    exit_code = NOT_FOUND

    def __init__(self, directory: str) -> None:
        self.directory = directory
        super().__init__(f"{directory}: no such directory")


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
    """A client that does not read its messages."""

    def __init__(self, peer: str, limit_bytes: int) -> None:
        self.peer = peer
        self.limit_bytes = limit_bytes
        super().__init__(f"client {peer} has {limit_bytes} bytes to take and does not")


class MemberAbsent(LithifyError):
    """A node that is to be removed is no member. Nothing has changed."""

    exit_code = NOT_FOUND

    def __init__(self, node: str, members: Collection[str]) -> None:
        self.node = node
        super().__init__(
            f"node {node} is not a member of the cluster: {', '.join(sorted(members))}"
        )


class MemberNotReached(LithifyError):
    """A node that is to be added, or to have another address, is not there. Nothing has changed."""

    exit_code = UNREACHABLE

    def __init__(self, node: str, address: str, why: str) -> None:
        self.node = node
        self.address = address
        what = f"node {node} was not reached at {address}: {why}"
        super().__init__(f"{what}. Nothing has changed; start it first, or correct the address")


class MemberReadsOnly(LithifyError):
    """Other members must agree to the request, and this process has no address for them."""

    exit_code = CONFLICT

    def __init__(self, node: str, others: list[str]) -> None:
        self.node = node
        self.others = others
        what = f"node {node} is in a cluster with {', '.join(others)}"
        super().__init__(
            f"{what}, and without an address for them it can only be read. Nothing has changed; "
            "send the request to a running node, or start this one with its cluster port"
        )


class ForeignGroup(LithifyError):
    """A node that is to be added has another group of the same name. Nothing has changed."""

    exit_code = CONFLICT

    def __init__(self, node: str, group: str, members: list[str]) -> None:
        self.node = node
        self.group = group
        self.members = members
        what = f"node {node} has a group {group} already, with the members {', '.join(members)}"
        super().__init__(
            f"{what}: it is another group than this one. Nothing has changed; to add {node}, "
            "start it with --join and a new data directory"
        )


class MemberAddressDiffers(LithifyError):
    """An address was given for a member that is reached at another. Nothing has changed."""

    exit_code = CONFLICT

    def __init__(self, node: str, known: str, given: str) -> None:
        self.node = node
        self.known = known
        self.given = given
        what = f"{node} is a member already, and is reached at {known}, not at {given}"
        super().__init__(f"{what}. Nothing has changed; `raft move` changes an address")


class NotTransferred(LithifyError):
    """Leadership was to be transferred to a member, and another member leads."""

    exit_code = CONFLICT

    def __init__(self, node: str, why: str) -> None:
        self.node = node
        super().__init__(f"leadership was not transferred to {node}: {why}")


class LearnerSilent(LithifyError):
    """Nodes were added as learners, did not answer, and were removed again."""

    exit_code = CONFLICT

    def __init__(self, nodes: list[str], limit_s: float) -> None:
        self.nodes = nodes
        names = ", ".join(nodes)
        super().__init__(f"{names} did not answer within {limit_s:g} s and was removed again")


class LearnersNotPromoted(LithifyError):
    """Nodes were added as learners and are no voters yet; they stay learners."""

    exit_code = FAILED

    def __init__(self, nodes: list[str], why: str) -> None:
        self.nodes = nodes
        names = ", ".join(nodes)
        super().__init__(
            f"{names} was added as a learner and stays one, because it cannot vote yet: {why}. "
            "It continues to receive the log. Repeat the command to make it a voter, or remove it"
        )


class OutcomeUnknown(LithifyError):
    """A proposal may have been done or not: this member was unseated, or a snapshot has passed."""

    exit_code = OUTCOME_UNKNOWN

    def __init__(self, group: str, index: int) -> None:
        self.group = group
        self.index = index
        super().__init__(f"group {group}: the outcome of proposal {index} is unknown")


class AddressesNotRecorded(LithifyError):
    """The disk has refused the addresses of members; the step before that may be done."""

    exit_code = OUTCOME_UNKNOWN

    def __init__(self, node: str, cause: OSError) -> None:
        self.node = node
        self.cause = cause
        super().__init__(f"node {node} cannot record addresses: {cause.strerror or cause}")


class CreationUnknown(LithifyError):
    """A group was begun; its members changed before all had joined, or the disk refused it."""

    exit_code = OUTCOME_UNKNOWN

    def __init__(self, group: str, what: str) -> None:
        self.group = group
        self.what = what
        super().__init__(f"group {group} was begun, but {what} while it was created")
