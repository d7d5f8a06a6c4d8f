"""Computes the next configuration, and tracks which one is in force. Pure.

A configuration is in force from the moment its entry is in the log, committed or not. When the
entry is overwritten, the configuration before it is in force again. So the safety of a change
depends on the log alone, not on the commit index that a member remembers after a crash.

`Membership` keeps the configurations from the last applied one on. Decisions depend on those from
the last committed one on: a leader has at most one above it (it refuses a second), a follower that
is behind may have several.
"""

from __future__ import annotations

from dataclasses import replace
from operator import attrgetter
from typing import TYPE_CHECKING

from lithify.errors import InvalidInput
from lithify.raft.core.configuration import Config, Mode, Op
from lithify.raft.core.errors import InvalidChange
from lithify.raft.core.values import EntryKind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lithify.raft.core.configuration import ConfChange, MemberChange
    from lithify.raft.entry import Entry

__all__ = ["Membership", "changed"]

_KIND = attrgetter("kind")
_CONFIG = int(EntryKind.CONFIG)


def changed(config: Config, change: ConfChange) -> Config:
    """The configuration after a change; raises `InvalidChange` if it is impossible."""
    if change.leaves:
        return _left(config)
    if config.joint:
        raise InvalidChange(f"{change} refused: {config} is joint and must be left first")
    before = config
    if change.enters_joint:
        auto_leave = change.mode is not Mode.EXPLICIT
        config = replace(config, outgoing=config.voters, auto_leave=auto_leave)
    for item in change.changes:
        config = _with(config, item)
    if not config.voters:
        raise InvalidChange(f"{change} would leave no voter of {before}")
    if config == before:
        raise InvalidChange(f"{change} would change nothing: {before}")
    return config


def _left(config: Config) -> Config:
    if not config.joint:
        raise InvalidChange(f"there is no joint configuration to leave: {config}")
    learners = config.learners | config.learners_next
    members = config.voters | learners
    identities = frozenset(pair for pair in config.identities if pair[0] in members)
    return Config(config.voters, learners=learners, identities=identities)


def _with(config: Config, change: MemberChange) -> Config:
    one = frozenset((change.node,))
    voters = config.voters - one
    learners = config.learners - one
    learners_next = config.learners_next - one
    if change.op is Op.VOTER:
        voters |= one
    elif change.op is Op.LEARNER and change.node in config.outgoing:
        learners_next |= one
    elif change.op is Op.LEARNER:
        learners |= one
    identities = config.identities
    if change.node not in config.members or change.node not in voters | learners | config.outgoing:
        # A member that is added or removed keeps no earlier identity.
        identities = frozenset(pair for pair in identities if pair[0] != change.node)
        if change.op is not Op.REMOVE and change.identity:
            identities |= {(change.node, change.identity)}
    return replace(
        config,
        voters=voters,
        learners=learners,
        learners_next=learners_next,
        identities=identities,
    )


class Membership:
    """The configurations that matter now, with their indexes; see the module."""

    def __init__(self, index: int, config: Config) -> None:
        self._stack = [(index, config)]
        self._committed = 0
        """Position of the last committed configuration in the stack."""

    @property
    def config(self) -> Config:
        """The configuration in force."""
        return self._stack[-1][1]

    @property
    def index(self) -> int:
        """The index of the configuration in force."""
        return self._stack[-1][0]

    @property
    def everyone(self) -> frozenset[str]:
        """All members of all configurations that may turn out to be the committed one."""
        return frozenset().union(*(config.members for _, config in self._open()))

    @property
    def open(self) -> list[Config]:
        """All configurations that may turn out to be the committed one."""
        return [config for _, config in self._open()]

    def may_campaign(self, node: str) -> bool:
        """Whether the node has a vote in a configuration that may turn out to be the committed one.

        A leader that has removed itself may be the only one with that entry, and must lead until it
        is committed: the others cannot be elected without it.
        """
        return any(node in config.electorate for _, config in self._open())

    def _open(self) -> list[tuple[int, Config]]:
        return self._stack[self._committed :]

    def at(self, index: int) -> Config:
        """The configuration at an index that is not below the last applied one."""
        for start, config in reversed(self._stack):
            if start <= index:
                return config
        raise InvalidInput(f"the members at index {index} are not known: it is applied")

    def add(self, entries: Sequence[Entry]) -> bool:
        """Add the configurations among appended entries; returns whether there are any."""
        if _CONFIG not in map(_KIND, entries):
            return False
        for entry in entries:
            if entry.kind == _CONFIG:
                self._stack.append((entry.index, Config.parse(entry.payload)))
        return True

    def cut(self, last_index: int) -> bool:
        """Remove configurations above `last_index`; returns whether there are any."""
        before = len(self._stack)
        while len(self._stack) > 1 and self._stack[-1][0] > last_index:
            self._stack.pop()
        return len(self._stack) != before

    def restore(self, index: int, config: Config) -> None:
        """A snapshot replaces the log, and with it the uncommitted configurations."""
        del self._stack[self._committed + 1 :]
        self._stack.append((index, config))
        self._committed += 1

    def settle(self, commit: int) -> None:
        """Mark configurations up to `commit` as committed."""
        while (
            self._committed + 1 < len(self._stack) and self._stack[self._committed + 1][0] <= commit
        ):
            self._committed += 1

    def forget(self, applied: int) -> None:
        """Drop configurations that no index from `applied` on needs."""
        while self._committed and self._stack[1][0] <= applied:
            del self._stack[0]
            self._committed -= 1
