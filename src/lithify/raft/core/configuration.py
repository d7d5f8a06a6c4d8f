"""Configurations: the members of a group, and changes to them. Pure values with a text form.

A configuration is simple (one set of voters) or joint: then every decision needs a majority of the
`voters` and also one of the `outgoing` voters. Learners receive entries and do not vote. A voter
that is demoted stays in `outgoing` while the configuration is joint and becomes a learner when it
is left, so that no member is a voter and a learner at once.

A member may have an identity: that of the data directory with which it was added. Its peers then
accept no other directory under that name (`raft/net/peer_recognition.py`). The first members have
none.

Both are written as text. A configuration in a log entry:

    config   = part (", " part)*
    part     = set (" " name)+  |  "auto-leave"  |  "identities" (" " name "=" identity)+
    set      = "voters" | "outgoing" | "learners" | "learners-next"
    identity = 32 hexadecimal digits

Stories and overviews omit the identities. A version that does not know them ignores them.

A change, as it is requested:

    change  = [mode ":"] item ("," item)*  |  "leave"
    mode    = "joint" | "explicit"
    item    = "+" name ["@" identity]     add a voter, or promote a learner
            | "~" name ["@" identity]     add a learner, or demote a voter
            | "-" name                    remove

One item changes the configuration at once. Several items, or `joint:`, make it joint until the
leader leaves it automatically; with `explicit:` it is joint until `leave` is proposed. The log
contains the resulting configuration, not the change: a member that joins knows no earlier one.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

from lithify.raft.core.errors import InvalidChange

__all__ = ["ConfChange", "Config", "MemberChange", "Mode", "Op", "check_identity", "check_name"]

NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,62}")
IDENTITY = re.compile(r"[0-9a-f]{32}")


def check_name(name: str) -> None:
    """Raise unless this is a valid name of a member; names are separated by blanks in texts."""
    if not NAME.fullmatch(name):
        limit = "1 to 63 letters, digits, _ . or -, not beginning with . or -"
        raise InvalidChange(f"member name {name!r} is invalid: must be {limit}")


def check_identity(identity: str) -> None:
    """Raise unless this is a valid identity of a data directory."""
    if not IDENTITY.fullmatch(identity):
        raise InvalidChange(f"identity {identity!r} is invalid: must be 32 hexadecimal digits")


@dataclass(frozen=True, slots=True)
class Config:
    """The members at an index."""

    voters: frozenset[str] = frozenset()
    outgoing: frozenset[str] = frozenset()
    learners: frozenset[str] = frozenset()
    learners_next: frozenset[str] = frozenset()
    """Outgoing voters that become learners when the joint configuration is left."""
    auto_leave: bool = False
    identities: frozenset[tuple[str, str]] = frozenset()
    """(name, identity) of members that were added with one."""

    def __post_init__(self) -> None:
        for name in self.members | self.learners_next:
            check_name(name)
        for _, identity in self.identities:
            check_identity(identity)

    def identity_of(self, name: str) -> str:
        """The identity with which a member was added; empty if it had none."""
        return dict(self.identities).get(name, "")

    @property
    def joint(self) -> bool:
        """Whether two majorities are needed."""
        return bool(self.outgoing)

    @property
    def electorate(self) -> frozenset[str]:
        """All members with a vote in one of the majorities."""
        return self.voters | self.outgoing

    @property
    def members(self) -> frozenset[str]:
        """All members that receive entries."""
        return self.voters | self.outgoing | self.learners

    def __str__(self) -> str:
        sets = {
            "voters": self.voters,
            "outgoing": self.outgoing,
            "learners": self.learners,
            "learners-next": self.learners_next,
        }
        parts = [" ".join([name, *sorted(nodes)]) for name, nodes in sets.items() if nodes]
        if self.auto_leave:
            parts.append("auto-leave")
        return ", ".join(parts) or "nobody"

    def encode(self) -> bytes:
        """The value in a log entry."""
        known = "".join(f" {name}={identity}" for name, identity in sorted(self.identities))
        return (f"{self}, identities{known}" if known else str(self)).encode()

    @classmethod
    def parse(cls, text: bytes) -> Config:
        """The opposite of `encode`."""
        sets: dict[str, frozenset[str]] = {}
        for part in text.decode().split(", "):
            name, *nodes = part.split(" ")
            sets[name] = frozenset(nodes)
        auto_leave = sets.pop("auto-leave", None) is not None
        return cls(
            sets.pop("voters", frozenset()),
            sets.pop("outgoing", frozenset()),
            sets.pop("learners", frozenset()),
            sets.pop("learners-next", frozenset()),
            auto_leave=auto_leave,
            identities=frozenset(_pair(text) for text in sets.pop("identities", ())),
        )


def _pair(text: str) -> tuple[str, str]:
    name, _, identity = text.partition("=")
    return name, identity


class Op(StrEnum):
    """The new role of a member."""

    VOTER = "+"
    LEARNER = "~"
    REMOVE = "-"


class Mode(StrEnum):
    """How a change is applied."""

    AUTO = ""
    """Simple if it is one item, else joint."""
    JOINT = "joint"
    """Joint; the leader leaves it when it is committed."""
    EXPLICIT = "explicit"
    """Joint until `leave` is proposed."""


@dataclass(frozen=True, slots=True)
class MemberChange:
    """One item of a change."""

    op: Op
    node: str
    identity: str = ""
    """Of the node's data directory, as checked by the leader."""

    def __str__(self) -> str:
        return f"{self.op}{self.node}" + (f"@{self.identity}" if self.identity else "")


@dataclass(frozen=True, slots=True)
class ConfChange:
    """A membership change; without items it leaves the joint configuration."""

    changes: tuple[MemberChange, ...] = ()
    mode: Mode = Mode.AUTO

    @property
    def leaves(self) -> bool:
        """Whether it ends a joint configuration."""
        return not self.changes

    @property
    def enters_joint(self) -> bool:
        """Whether it begins a joint configuration."""
        return len(self.changes) > 1 or (self.mode is not Mode.AUTO and not self.leaves)

    def __str__(self) -> str:
        if self.leaves:
            return "leave"
        items = ",".join(map(str, self.changes))
        return f"{self.mode}:{items}" if self.mode else items

    @classmethod
    def parse(cls, text: str) -> ConfChange:
        """The opposite of `str`."""
        if text == "leave":
            return cls()
        mode, colon, items = text.rpartition(":")
        if colon and mode not in (Mode.JOINT, Mode.EXPLICIT):
            raise InvalidChange(f"change {text!r} has the mode {mode!r}, must be joint or explicit")
        changes = []
        for item in items.split(","):
            if not item or item[0] not in tuple(Op):
                raise InvalidChange(f"change {text!r} has the item {item!r}, must be like +n4")
            name, at, identity = item[1:].partition("@")
            check_name(name)
            if at:
                check_identity(identity)
            changes.append(MemberChange(Op(item[0]), name, identity))
        return cls(tuple(changes), Mode(mode))
