"""Which data directory a node accepts under which name, and whether the own one may vote. Pure.

A data directory has a random identity, chosen when it is created. Votes and entries were promised
under it: a node that returns under its name with an empty directory has lost them, and could help
to elect a leader that lacks acknowledged entries. So

1. Nodes show their identities when they connect (`transport.py`). Each records those of the others,
   for the whole node, because a directory has the node's members of all groups (`known`, in
   `NODE`). A peer's records of third nodes fill gaps.
2. A node that is added to a group is added with its identity, in the log entry with the members
   (`Config.identities`). This wins over the record: members that were down learn from the log that
   a name was removed and added again.
3. Another identity under the name of a member is refused, in both directions, as long as one of the
   configurations in force here, committed or not, has that member. After `remove` no configuration
   has it; `add` brings the new identity.
4. A new directory that starts a group with first members does not vote in it before the others have
   confirmed that they know no other: all of them, or a majority after `PROBATION_TICKS`. A refused
   one is `disowned`: it deletes the groups that it has started, and votes only where the log has
   its identity.
5. Each start of a node has a random mark, which is durable before other nodes see it (`Starts`).
   Nodes show the marks of their last starts, and record the newest start of each other, including
   what others have recorded. A directory that lacks a recorded start of its identity is an older
   copy: it has lost what it promised since. It is refused like a replaced one, and notified; then
   it chooses a new identity, and is a replaced one.

   Marks are kept of `MARKS_MAX` starts. So that a copy cannot start until all marks are its
   own, each pair of nodes keeps one more, whatever its age: a node records the newest start
   that another has shown to it directly (`starts_shown`), and each records the newest own start
   that the other is known to have recorded (`starts_known`), and shows that one to it. A directory
   that shows no record of the start which was shown here, nor of a later one, has not made that
   start: it is an older copy, after any number of starts.
6. After each start a node does not vote before all other voters have accepted it, or for
   `PROBATION_TICKS`: so that an older copy is notified first.
7. A cluster has an id, chosen for the first entry of its first group (`raft/node/node.py`). Nodes
   show it. One with another id is refused, unless its directory is known as that of a member.

Directories of earlier versions get an identity when they are opened, and count as accepted. Nodes
of earlier versions show neither starts nor an id, and are accepted without.

Limits. If the rest of a majority has never met the node, and no node that has met it is alive, this
cannot be distinguished from the first start of a group. A copy is not detected if no live node has
met a start after the copied one; nor after `MARKS_MAX` starts, if no live node was shown a later
start directly.

A directory that is not a copy is taken for one if it crashed between another node's record of its
start and its own record of that, and then started `MARKS_MAX` times without that node.

The node decides and sends; simulators use it as it is.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

from lithify.errors import ProtocolError
from lithify.exit_codes import CONFLICT

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from lithify.raft.core.configuration import Config

__all__ = [
    "MARKS_MAX",
    "PROBATION_TICKS",
    "IdentityRefused",
    "KnownStart",
    "OwnStart",
    "PeerRecognition",
    "Standing",
    "Starts",
]

KNOWN_MAX = 200
"""Maximum of recorded nodes: more than a cluster has, and they fit into a greeting."""
PROBATION_TICKS = 30
"""Three election timeouts of the default settings."""
MARKS_MAX = 256
"""Number of starts whose marks are kept; of older ones, those that a peer has recorded."""


class IdentityRefused(ProtocolError):
    """A node has another data directory than the one that is known under its name."""

    exit_code = CONFLICT


class Standing(StrEnum):
    """The other nodes' view of the own directory."""

    NEW = "new"
    """It is new, and the others were not asked."""
    ACCEPTED = "accepted"
    DISOWNED = "disowned"
    """The others know another directory by this name."""


class Starts(NamedTuple):
    """The number of starts of a directory, and the marks of the last ones, newest last."""

    number: int = 0
    marks: tuple[str, ...] = ()

    def again(self, mark: str) -> Starts:
        """Add a start."""
        return Starts(self.number + 1, (*self.marks, mark)[-MARKS_MAX:])

    def has(self, number: int, mark: str) -> bool:
        """May this directory have made that start?"""
        place = number - self.number - 1
        if place >= 0:
            return False
        return -place > len(self.marks) or self.marks[place] == mark

    def knows(self, number: int, mark: str) -> bool:
        """Has it made that start for certain?"""
        return self.has(number, mark) and self.number - number < len(self.marks)


class KnownStart(NamedTuple):
    """The newest start of a directory that is known."""

    identity: str
    number: int
    mark: str


class OwnStart(NamedTuple):
    """A start of the own directory that another node has recorded."""

    number: int = 0
    mark: str = ""

    def vouches(self, met: KnownStart) -> bool:
        """Does it follow a start that was met, or is it that one?"""
        return self.number > met.number or self == (met.number, met.mark)


class PeerRecognition:
    """See the module."""

    def __init__(
        self, node: str, own: str, standing: Standing, known: dict[str, str] | None = None
    ) -> None:
        self.node = node
        self.own = own
        """The identity of the own directory."""
        self.standing = standing
        self.known = {} if known is None else known
        self.starts = Starts()
        self.met_starts: dict[str, KnownStart] = {}
        self.starts_shown: dict[str, KnownStart] = {}
        """As `met_starts`, but only starts that a node has shown itself."""
        self.starts_known: dict[str, OwnStart] = {}
        """The newest own start that each other node is known to have recorded."""
        self.cluster_id = ""
        """Empty until it is known."""
        self.accepted_by: set[str] = set()
        """Nodes that have accepted this one since it was started."""
        self.ticks = PROBATION_TICKS
        """Since it was started, as far as they count."""

    @property
    def identities(self) -> dict[str, str]:
        """The identities of all known nodes, including this one."""
        return self.known | {self.node: self.own}

    def expected(self, name: str, configs: Iterable[Config]) -> set[str]:
        """The identities that a member may be required to have; empty if any is accepted."""
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

    def older_copy(
        self,
        name: str,
        shown: str,
        starts: Starts,
        configs: Iterable[Config],
        known: OwnStart | None = None,
    ) -> str:
        """Why a member's directory is an older copy of what was met here; empty if it is none.

        `known` is its start that it knows to be recorded here; None if it is of an earlier version.
        """
        if not starts.number or not any(name in each.members for each in configs):
            return ""
        met, direct = self.met_starts.get(name), self.starts_shown.get(name)
        found = [each for each in (met, direct) if each is not None and each.identity == shown]
        lacking = [each for each in found if not starts.has(each.number, each.mark)]
        if direct in found and not starts.knows(direct.number, direct.mark):
            lacking += [direct] if known is not None and not known.vouches(direct) else []
        if not lacking:
            return ""
        met = lacking[0]
        return (
            f"node {name} shows start {starts.number} of its data directory, which does not follow "
            f"start {met.number} that {self.node} knows of: it is an older copy. "
            f"Remove {name} from its groups and add it again"
        )

    def foreign(self, name: str, shown: str, cluster_id: str, configs: Iterable[Config]) -> str:
        """Why a node belongs to another cluster; empty if it does not, or if unknown."""
        own = self.cluster_id
        if not own or cluster_id in ("", own) or shown in self.expected(name, configs):
            return ""
        return f"node {name} belongs to cluster {cluster_id}, not to {own} as {self.node} does"

    def record_start(self, name: str, met: KnownStart) -> bool:
        """Record a start of a node; returns whether it is the newest."""
        before = self.met_starts.get(name)
        if name == self.node or not met.number:
            return False
        if before is None and len(self.met_starts) >= KNOWN_MAX:
            return False
        if before is not None and before.identity == met.identity:
            if met.number <= before.number:
                return False
        elif self.known.get(name, met.identity) != met.identity:
            # A third node's record of a directory that was replaced.
            return False
        self.met_starts[name] = met
        return True

    def showed_start(self, name: str, met: KnownStart) -> bool:
        """Record a start that an accepted node has shown; returns whether it is new."""
        before = self.starts_shown.get(name)
        if before == met or (before is None and len(self.starts_shown) >= KNOWN_MAX):
            return False
        self.starts_shown[name] = met
        return True

    def is_older_copy(self, met: KnownStart, name: str = "", *, is_refused: bool = False) -> bool:
        """A node has recorded a start of the own directory; does this directory lack it?

        If the start is too old for its mark, the record of what that node knows decides, in case
        it refuses this directory.
        """
        if met.identity != self.own or self.starts.knows(met.number, met.mark):
            return False
        if not self.starts.has(met.number, met.mark):
            return True
        return is_refused and not self.starts_known.get(name, OwnStart()).vouches(met)

    def start_recorded(self, name: str, met: KnownStart) -> bool:
        """Note that a node has recorded an own start; returns whether that is new."""
        start, before = OwnStart(met.number, met.mark), self.starts_known.get(name)
        if met.identity != self.own or not self.starts.knows(*start):
            return False
        if (before or OwnStart()).number >= met.number:
            return False
        if before is None and len(self.starts_known) >= KNOWN_MAX:
            return False
        self.starts_known[name] = start
        return True

    def renounce(self, own: str) -> None:
        """The own directory is an older copy: take a new identity."""
        self.own, self.standing = own, Standing.DISOWNED

    def record_met(self, name: str, shown: str) -> bool:
        """Record the identity of an accepted node; returns whether it is new."""
        if not shown or self.known.get(name) == shown:
            return False
        if name not in self.known and len(self.known) >= KNOWN_MAX:
            return False
        self.known[name] = shown
        return True

    def merge_known(self, known: dict[str, str]) -> bool:
        """Record the identities that an accepted node knows; returns whether some are new."""
        news = {name: each for name, each in known.items() if name not in self.known}
        news.pop(self.node, None)
        if len(self.known) + len(news) > KNOWN_MAX:
            return False
        self.known |= news
        return bool(news)

    def may_vote(self, config: Config) -> bool:
        """May the own directory vote: has it kept all promises under its name in this group?"""
        others = config.electorate - {self.node}
        if self.ticks < PROBATION_TICKS and not others <= self.accepted_by:
            return False
        if self.standing is Standing.ACCEPTED or config.electorate == {self.node}:
            return True
        return config.identity_of(self.node) == self.own

    def record_acceptance(self, first: Collection[str], by: Collection[str], ticks: int) -> bool:
        """End the probation of a new directory, if enough nodes have accepted it."""
        if self.standing is not Standing.NEW:
            return False
        others = set(first) - {self.node}
        agreed = len(others & set(by))
        is_majority = 2 * (agreed + 1) > len(others) + 1 and ticks >= PROBATION_TICKS
        if agreed < len(others) and not is_majority:
            return False
        self.standing = Standing.ACCEPTED
        return True

    def record_disowned(self) -> bool:
        """A peer knows another directory by this name; returns whether that is new."""
        if self.standing is not Standing.NEW:
            return False
        self.standing = Standing.DISOWNED
        return True
