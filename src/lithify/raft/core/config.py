"""Who the members are, and the changes that can be asked for. Pure values with a text form.

A configuration is simple (one set of voters) or joint: then every decision needs a majority of the
`voters` and also one of the `outgoing` voters. Learners get entries and have no say. A voter that
is to become a learner stays in `outgoing` while the configuration is joint and is a learner when it
is left, so that nobody is a voter and a learner at once.

A member may have an identity: that of the data directory with which it was added. Its peers then
accept no other directory under that name (`recognition.py`). First members have none here.

Both are written as text. A configuration, as it stands in a log entry:

    config   = part (", " part)*
    part     = set (" " name)+  |  "auto-leave"  |  "identities" (" " name "=" identity)+
    set      = "voters" | "outgoing" | "learners" | "learners-next"
    identity = 32 hexadecimal digits

Stories and overviews leave the identities out. A version that does not know them ignores them.

A change, as it is asked for:

    change  = [mode ":"] item ("," item)*  |  "leave"
    mode    = "joint" | "explicit"
    item    = "+" name ["@" identity]     add a voter, or promote a learner
            | "~" name ["@" identity]     add a learner, or demote a voter
            | "-" name                    remove

One item changes the configuration at once. Several, or `joint:`, make it joint until the leader
leaves it by itself; with `explicit:` it is joint until somebody proposes `leave`. The log has the
configuration that comes of a change, not the change: a member that joins knows none before it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

from lithify.raft.core.errors import InvalidChange

__all__ = ["Change", "ConfChange", "Config", "Mode", "Op", "check_identity", "check_name"]

NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,62}")
IDENTITY = re.compile(r"[0-9a-f]{32}")


def check_name(name: str) -> None:
    """Raise unless this can be the name of a member, which stands in texts between blanks."""
    if not NAME.fullmatch(name):
        limit = "1 to 63 letters, digits, _ . or -, not beginning with . or -"
        raise InvalidChange(f"a member cannot be called {name!r}: {limit}")


def check_identity(identity: str) -> None:
    """Raise unless this can be the identity of a data directory."""
    if not IDENTITY.fullmatch(identity):
        raise InvalidChange(f"{identity!r} is no identity: 32 hexadecimal digits")


@dataclass(frozen=True, slots=True)
class Config:
    """The members at some index."""

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
        """Are two majorities needed?"""
        return bool(self.outgoing)

    @property
    def electorate(self) -> frozenset[str]:
        """All who have a vote in one of the majorities."""
        return self.voters | self.outgoing

    @property
    def members(self) -> frozenset[str]:
        """All who get entries."""
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
        """As it stands in a log entry."""
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
    """What is to become of a member."""

    VOTER = "+"
    LEARNER = "~"
    REMOVE = "-"


class Mode(StrEnum):
    """How a change is made."""

    AUTO = ""
    """At once if it is one item, else joint."""
    JOINT = "joint"
    """Joint; the leader leaves it when it is committed."""
    EXPLICIT = "explicit"
    """Joint until somebody proposes to leave."""


@dataclass(frozen=True, slots=True)
class Change:
    """One item of a change."""

    op: Op
    node: str
    identity: str = ""
    """Of the data directory that the node has; the leader has seen it."""

    def __str__(self) -> str:
        return f"{self.op}{self.node}" + (f"@{self.identity}" if self.identity else "")


@dataclass(frozen=True, slots=True)
class ConfChange:
    """A change of members; without items it leaves the joint configuration."""

    changes: tuple[Change, ...] = ()
    mode: Mode = Mode.AUTO

    @property
    def leaves(self) -> bool:
        """Does it end a joint configuration?"""
        return not self.changes

    @property
    def enters_joint(self) -> bool:
        """Does it begin one?"""
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
            changes.append(Change(Op(item[0]), name, identity))
        return cls(tuple(changes), Mode(mode))
