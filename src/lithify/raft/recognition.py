"""Which data directory a node accepts under which name, and whether the own one may vote. Pure.

A data directory has a random identity, drawn when it is made. Votes and entries were given with it:
a node that comes back under its old name with an empty directory has forgotten them, and could help
to elect a leader that lacks acknowledged entries. So

1. Nodes show their identities when they connect (`transport.py`). Each records those of the others,
   node-wide, because a directory holds the node's members of all groups (`known`, in `NODE`). What
   a peer has recorded of third nodes fills gaps.
2. A node that is added to a group is added with its identity, which stands in the log entry with
   the members (`Config.identities`). It counts before the record: members that were away learn from
   the log that a name was removed and added again.
3. Another identity under the name of a member is refused, in both directions, as long as one of the
   configurations in force here, committed or not, has that member. After `remove` no configuration
   has it; `add` brings the new identity.
4. A directory that is new and begins a group with first members does not vote in it before the
   others have said that they know no other: all of them, or a majority after `PROBATION_TICKS`.
   One that is refused meanwhile is `disowned`. It gives back what it has begun, and votes only
   where the log has its identity.

Directories of earlier versions get an identity when they are opened, and count as accepted.

Not covered: the others of a majority have never met the node, and nobody who has is alive. That is
not to be told from the first start of a group.

The node decides and sends; simulators use it as it is.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

from lithify.errors import CONFLICT, ProtocolError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from lithify.raft.core.config import Config

__all__ = ["PROBATION_TICKS", "IdentityRefused", "Recognition", "Standing"]

KNOWN_MAX = 1024
"""Nodes of which others have told; more than a cluster has."""
PROBATION_TICKS = 30
"""Three election timeouts of the default settings."""


class IdentityRefused(ProtocolError):
    """A node has another data directory than the one that is known under its name."""

    exit_code = CONFLICT


class Standing(StrEnum):
    """What the others think of the own directory."""

    NEW = "new"
    """It was just made, and they were not asked."""
    ACCEPTED = "accepted"
    DISOWNED = "disowned"
    """They know another one by this name."""


class Recognition:
    """See the module."""

    def __init__(
        self, node: str, own: str, standing: Standing, known: dict[str, str] | None = None
    ) -> None:
        self.node = node
        self.own = own
        """The identity of the own directory."""
        self.standing = standing
        self.known = {} if known is None else known

    @property
    def identities(self) -> dict[str, str]:
        """Those of all nodes that are known, and the own one."""
        return self.known | {self.node: self.own}

    def expected(self, name: str, configs: Iterable[Config]) -> set[str]:
        """The identities that a member may have to have; empty if any will do."""
        found = {
            config.identity_of(name) or self.known.get(name, "")
            for config in configs
            if name in config.members
        }
        return found - {""}

    def refusal(self, name: str, shown: str, configs: Iterable[Config]) -> str:
        """Why a node is not accepted; empty if it is. Nodes of earlier versions show nothing."""
        others = self.expected(name, configs) - {shown}
        if not others:
            return ""
        what = f"identity {shown}" if shown else "no identity"
        return (
            f"node {name} shows {what}, but {self.node} knows it by {', '.join(sorted(others))}: "
            f"its data directory was replaced. Remove {name} from its groups and add it again"
        )

    def met(self, name: str, shown: str) -> bool:
        """A node was accepted; is its identity news?"""
        if not shown or self.known.get(name) == shown:
            return False
        self.known[name] = shown
        return True

    def hear(self, known: dict[str, str]) -> bool:
        """A node that was accepted says whom it knows; is some of it news?"""
        news = {name: each for name, each in known.items() if name not in self.known}
        news.pop(self.node, None)
        if len(self.known) + len(news) > KNOWN_MAX:
            return False
        self.known |= news
        return bool(news)

    def may_vote(self, config: Config) -> bool:
        """Has the own directory all that was promised in this group under its name?"""
        if self.standing is Standing.ACCEPTED or config.electorate == {self.node}:
            return True
        return config.identity_of(self.node) == self.own

    def accepted(self, first: Collection[str], by: Collection[str], ticks: int) -> bool:
        """Others have accepted a new directory; does that end its probation?"""
        if self.standing is not Standing.NEW:
            return False
        others = set(first) - {self.node}
        agreed = len(others & set(by))
        is_majority = 2 * (agreed + 1) > len(others) + 1 and ticks >= PROBATION_TICKS
        if agreed < len(others) and not is_majority:
            return False
        self.standing = Standing.ACCEPTED
        return True

    def disown(self) -> bool:
        """A peer knows another directory by this name; is that news?"""
        if self.standing is not Standing.NEW:
            return False
        self.standing = Standing.DISOWNED
        return True
