"""Whole members of a group that lose their disks and come back under their names, by one seed.

    python -m tests.property.raft_wiped [--seeds N] [--first SEED] [--steps N]

The world is that of `raft_cluster.py`. In addition a member's disk is replaced by an empty one, and
it is started again as it was the first time. One at a time: of an entry that a majority has
acknowledged, the others of that majority remain. Operators remove it and add it again, sooner or
later. Who accepts whom is decided by `PeerRecognition`, as in a node: nothing goes between members
that do not accept each other, and what was in flight to or from the old disk is lost with it.

Checked, beside what that world checks: no member stops because its history is another one.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

from lithify.fs import MemoryFileSystem
from lithify.raft.core import ConfChange, CoreSettings, MemberChange, Mode, Op
from lithify.raft.core.quorum import has_quorum
from lithify.raft.group.removed_members import NEVER_LEFT
from lithify.raft.net.peer_recognition import PeerRecognition, Standing
from tests.property.raft_cluster import NAMES, World
from tests.property.seeds import simulated, worlds

if TYPE_CHECKING:
    from collections.abc import Callable

    from lithify.raft.core import Config, RaftMessage
    from lithify.raft.group.settings import GroupSettings
    from tests.property.raft_member import Member

GROUP = "g"
ELECTION_TICKS = 6


class Wiped(World):
    nobody_stops = True

    def __init__(self, seed: int) -> None:
        self.recognitions: dict[str, PeerRecognition] = {}
        self.accepted_by: dict[str, set[str]] = {name: set() for name in NAMES}
        self.ages: Counter[str] = Counter()
        self.directories = 0
        self.lost = ""
        """Whose disk was replaced, until it is a voter again."""
        for name in NAMES:
            self.recognitions[name] = PeerRecognition(name, self.new_identity(), Standing.ACCEPTED)
        super().__init__(seed)
        self.groups = (GROUP,)
        self.applied = {GROUP: self.applied[GROUP]}
        self.history = {place: ops for place, ops in self.history.items() if place[0] == GROUP}
        for member in self.members.values():
            member.groups = {GROUP: member.groups[GROUP]}
        rng = self.random
        self.actions += [
            (rng.choice((0.5, 1.5)), self.wipe),
            (rng.choice((0.5, 3)), self.look_after_lost),
            (10, self.greet_some),
        ]

    def new_identity(self) -> str:
        self.directories += 1
        return f"{self.directories:032x}"

    def settings_of(self, name: str) -> GroupSettings:
        given = super().settings_of(name)
        made, recognition = given.core, self.recognitions[name]

        def core(node: str, draw: Callable[[int], int]) -> CoreSettings:
            return replace(made(node, draw), may_vote=recognition.may_vote)

        return replace(given, core=core)

    # Who accepts whom.

    def configs_of(self, name: str) -> list[Config]:
        member = self.members.get(name)
        return [] if member is None else member.groups[GROUP].open_configs

    def accepts(self, name: str, other: str) -> bool:
        shown = self.recognitions[other].own
        return not self.recognitions[name].refusal(other, shown, self.configs_of(name))

    def greet(self, one: str, two: str) -> bool:
        """Two nodes connect; do they accept each other?"""
        accepted = self.accepts(one, two), self.accepts(two, one)
        for name, other, is_accepted in ((one, two, accepted[1]), (two, one, accepted[0])):
            if is_accepted:
                self.accepted_by[name].add(other)
            elif self.recognitions[name].record_disowned():
                self.counts["disowned"] += 1
                self.give_back(name)
        if not all(accepted):
            return False
        for name, other in ((one, two), (two, one)):
            self.recognitions[name].record_met(other, self.recognitions[other].own)
            self.recognitions[name].merge_known(dict(self.recognitions[other].known))
        return True

    def give_back(self, name: str) -> None:
        """A directory that counts for nothing has begun a group; it does no more."""
        member = self.members.get(name)
        if member is None or member.groups[GROUP].status().last_index:
            return
        self.left[name] = self.left.get(name, NEVER_LEFT).again(member.groups[GROUP].status())
        del self.members[name]
        self.start(name, MemoryFileSystem(clock=self.clock))

    def greet_some(self) -> None:
        for _ in range(3):
            pair = self.random.sample(NAMES, 2)
            if all(name in self.members for name in pair) and frozenset(pair) not in self.broken:
                self.greet(*pair)

    def tick(self) -> None:
        super().tick()
        self.grow_older()

    def heal_round(self) -> None:
        alive = list(self.members)
        for place, one in enumerate(alive):
            for two in alive[place + 1 :]:
                if one in self.members and two in self.members:
                    self.greet(one, two)
        self.grow_older()
        super().heal_round()
        if not self.crashes:
            self.look_after_lost()

    def grow_older(self) -> None:
        for name in self.members:
            self.ages[name] += 1
            self.recognitions[name].record_acceptance(
                self.voters, self.accepted_by[name], self.ages[name]
            )

    def work(self, member: Member) -> None:
        before = len(self.network)
        super().work(member)
        # Without a connection nothing is sent.
        new = [each for each in self.network[before:] if self.is_connected(each[1])]
        self.network[before:] = new

    def is_connected(self, message: RaftMessage) -> bool:
        one, two = message.sender, message.to
        return self.accepts(one, two) and self.accepts(two, one)

    def hand_over(self, name: str, message: RaftMessage) -> None:
        if message.to in self.members and self.greet(message.sender, message.to):
            super().hand_over(name, message)
        for member in self.members.values() if self.nobody_stops else ():
            stopped = member.groups[GROUP].stopped
            assert stopped is None, f"{member.name} stopped: {stopped}"

    def all_the_same(self, name: str, index: int) -> bool:
        return not self.lost and super().all_the_same(name, index)

    # What happens.

    def wipe(self) -> None:
        """Replace a voter's disk by an empty one, and start the node as it was started first."""
        leader = self.a_leader(GROUP)
        if self.lost or leader is None:
            return
        name = self.random.choice(sorted(leader.groups[GROUP].config.voters))
        others = set(NAMES) - {name}
        configs = (config for each in NAMES for config in self.configs_of(each))
        if not all(has_quorum(config, others) for config in configs):
            return
        self.counts["wipes"] += 1
        self.lost = name
        self.members.pop(name, None)
        self.dead.pop(name, None)
        self.left.pop(name, None)
        # All that it had: also who it was, and whom it knew.
        standing = Standing.NEW if name in self.voters else Standing.ACCEPTED
        self.recognitions[name] = PeerRecognition(name, self.new_identity(), standing)
        self.accepted_by[name] = set()
        for accepted in self.accepted_by.values():
            accepted.discard(name)
        self.ages[name] = 0
        self.network = [
            (group, message)
            for group, message in self.network
            if name not in (message.sender, message.to)
        ]
        self.start(name, MemoryFileSystem(clock=self.clock))

    def look_after_lost(self) -> None:
        """Remove the member that has lost its disk, then add it again, step by step."""
        leader = self.a_leader(GROUP)
        if not self.lost or leader is None:
            return
        name, group = self.lost, leader.groups[GROUP]
        config, own = group.config, self.recognitions[self.lost].own
        if config.identity_of(name) == own and name in config.voters:
            if group.status().config_index <= group.status().commit:
                self.lost = ""
                self.counts["rebuilt"] += 1
            return
        is_known = name in config.members and config.identity_of(name) != own
        self.ask(leader, [MemberChange(Op.REMOVE if is_known else Op.VOTER, name)])

    def change(self) -> None:
        leader = self.a_leader(GROUP)
        if leader is not None:
            names = self.random.sample(NAMES, self.random.choice((1, 1, 2)))
            self.ask(leader, [MemberChange(self.random.choice(list(Op)), name) for name in names])

    def ask(self, leader: Member, items: list[MemberChange]) -> None:
        """Ask for a change; a node that is added was checked first, and shows what it has.

        No operator acts before a loss was noticed: until then the leader counts on the last
        answers.
        """
        config, changes = leader.groups[GROUP].config, []
        progress = leader.groups[GROUP]._core._engine.role.progress  # type: ignore[attr-defined]
        is_heard = self.lost in progress and progress[self.lost].silent_ticks < ELECTION_TICKS
        if is_heard and config.identity_of(self.lost) != self.recognitions[self.lost].own:
            return
        for item in items:
            if item.op is Op.REMOVE or item.node in config.members:
                changes.append(item)
            elif item.node in self.members and self.accepts(leader.name, item.node):
                changes.append(replace(item, identity=self.recognitions[item.node].own))
        if not changes:
            return
        change = ConfChange(tuple(changes), self.random.choice((Mode.AUTO, Mode.JOINT)))
        with self.running(leader):
            leader.groups[GROUP].propose_change(change, self.changed)
            self.work(leader)


def simulate(seed: int, steps: int = 1500) -> Wiped:
    return simulated(Wiped, seed, steps)


def main() -> None:
    counts: Counter[str] = Counter()
    for world in worlds(Wiped, seeds=100, steps=1500):
        counts += world.counts
    print(", ".join(f"{n} {what}" for what, n in counts.items()))


if __name__ == "__main__":
    main()
