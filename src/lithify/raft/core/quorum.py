"""Majorities: what a set of members has agreed on. Pure arithmetic.

In a joint configuration both majorities must agree, so its result is the lower of the two. The
majority of an empty set agrees with everything, so a simple configuration is a joint one whose
other half is empty.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from lithify.raft.core.configuration import Config

__all__ = ["VoteTally", "agreed_index", "has_quorum", "tally"]

ANY_INDEX = 1 << 63
"""Above every index: what the majority of an empty set has agreed on."""


class VoteTally(StrEnum):
    """The result of an election so far."""

    WON = "won"
    LOST = "lost"
    OPEN = "open"


def agreed_index(config: Config, indexes: Mapping[str, int]) -> int:
    """The highest index that a majority (both, if joint) has reached."""
    agreed = _agreed(config.voters, indexes)
    return min(agreed, _agreed(config.outgoing, indexes)) if config.outgoing else agreed


def _agreed(voters: frozenset[str], indexes: Mapping[str, int]) -> int:
    if not voters:
        return ANY_INDEX
    reached = sorted(indexes.get(voter, 0) for voter in voters)
    # Of 2 and 3 sorted ascending, 2 voters must be at or above: position 0 and 1.
    return reached[(len(reached) - 1) // 2]


def tally(config: Config, votes: Mapping[str, bool]) -> VoteTally:
    """Won when the majorities have granted their votes, lost when one of them no longer can."""
    halves = [_tally(config.voters, votes), _tally(config.outgoing, votes)]
    if VoteTally.LOST in halves:
        return VoteTally.LOST
    return VoteTally.OPEN if VoteTally.OPEN in halves else VoteTally.WON


def _tally(voters: frozenset[str], votes: Mapping[str, bool]) -> VoteTally:
    if not voters:
        return VoteTally.WON
    needed = len(voters) // 2 + 1
    yes = sum(votes.get(voter, False) for voter in voters)
    open_ = sum(voter not in votes for voter in voters)
    if yes >= needed:
        return VoteTally.WON
    return VoteTally.OPEN if yes + open_ >= needed else VoteTally.LOST


def has_quorum(config: Config, nodes: Collection[str]) -> bool:
    """Whether these nodes are a quorum."""
    return tally(config, dict.fromkeys(nodes, True)) is VoteTally.WON
