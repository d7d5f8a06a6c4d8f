"""A partition that is moved between nodes in a bad world, driven by one seed.

    python -m tests.property.rebalance_cluster [--seeds N] [--first SEED] [--steps N]

The world is that of `raft_cluster.py`, with one group. Its assignment is a register that is changed
conditionally, as in the metastore. Two coordinators change where the partition should be, each by
what it knew a while ago. Every member that believes that it leads takes the steps of
`tables/rebalance.py`, some time after it has decided on them, by the assignment as it was then.
Members crash in the middle. Checked, beside what that world checks:

- every configuration has all nodes of a goal that was set at some time as voters, so no step goes
  below what an assignment has asked for
- in the end the members are those of the assignment, nothing is pending, and every other node has
  left the group
"""

from __future__ import annotations

import contextlib
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from immutables import Map

from lithify.catalog.catalog import Catalog
from lithify.catalog.objects import ZoneDescriptor
from lithify.raft.commands import CommandResult
from lithify.raft.core import ConfChange, Dropped, MemberChange, Op
from lithify.raft.core.errors import InvalidChange
from lithify.raft.group.removed_members import MemberQuery
from lithify.tables.assignments import Assigned, Assignment
from lithify.tables.rebalance import MoveAction, MoveStep, finished, next_steps, targets
from tests.property.raft_cluster import NAMES, World
from tests.property.seeds import simulated, worlds

if TYPE_CHECKING:
    from lithify.raft.commands import Result
    from lithify.raft.core import Config
    from tests.property.raft_member import Member

PARTITION = (5, 0)
GROUP = "g"
DECIDED_MAX = 8


class Decided(NamedTuple):
    """A step that a member takes later."""

    member: Member
    step: MoveStep
    known: Assigned


class RebalanceWorld(World):
    group_names = (GROUP,)

    def __init__(self, seed: int) -> None:
        self.goals: set[frozenset[str]] = set()
        self.decided: list[Decided] = []
        super().__init__(seed)
        self.version = 1
        first = Assignment(tuple(sorted(self.voters)), self.version, formed=True)
        self.assigned = Assigned(first, 1)
        self.goals.add(self.voters)
        self.seen = dict.fromkeys(("one", "two", *NAMES), self.assigned)
        """What coordinators and members know, which may be behind."""
        self.actions += [(1, self.learn), (8, self.learn), (15, self.decide), (15, self.take)]

    # The assignment.

    def replace(self, known: Assigned, new: Assignment) -> bool:
        """Change the assignment, if it is as it was known."""
        if known.revision != self.assigned.revision:
            self.counts["lost races"] += 1
            return False
        self.assigned = Assigned(new, known.revision + 1)
        return True

    def change(self) -> None:
        """A coordinator says where the partition should be."""
        rng = self.random
        self.version += 1
        zone = ZoneDescriptor(5, "z", partitions=1, replicas=rng.choice((1, 2, 3, 3)))
        catalog = Catalog(version=self.version, objects=Map({5: zone}))
        known = self.seen[rng.choice(("one", "two"))]
        members = rng.sample(NAMES, rng.choice((2, 3, 4, 5)))
        for new in targets(catalog, members, NAMES, {PARTITION: known}).values():
            if self.replace(known, new):
                self.goals.add(frozenset(new.goal))
                self.counts["retargeted"] += 1

    def learn(self) -> None:
        """One of those who follow the assignment gets the newest one."""
        self.seen[self.random.choice(list(self.seen))] = self.assigned

    # Steps.

    def decide(self) -> None:
        """A member that leads decides on a step, if its assignment is the present one."""
        member = self.a_leader(GROUP)
        if member is not None and len(self.decided) < DECIDED_MAX:
            self.decide_of(member)

    def decide_of(self, member: Member) -> None:
        known, group = self.seen[member.name], member.groups[GROUP]
        if known.revision != self.assigned.revision:
            return
        connected = [
            name
            for name in self.members
            if frozenset((member.name, name)) not in self.broken or name == member.name
        ]
        steps = next_steps(member.name, group.config, known.assignment.goal, connected)
        if steps == (MoveStep(MoveAction.FINISH),):
            status = group.status()
            if not known.assignment.pending or status.config_index > status.commit:
                return
        self.decided += (Decided(member, step, known) for step in steps)

    def take(self) -> None:
        """A step that was decided on is taken."""
        if not self.decided:
            return
        member, step, known = self.decided.pop(self.random.randrange(len(self.decided)))
        if self.members.get(member.name) is not member:
            return
        self.counts[step.action] += 1
        if step.action is MoveAction.FINISH:
            if self.replace(known, finished(known.assignment)):
                self.counts["finished"] += 1
            return
        group = member.groups[GROUP]
        with self.running(member), contextlib.suppress(Dropped, InvalidChange):
            if step.action is MoveAction.TRANSFER:
                group.transfer(step.nodes[0])
            else:
                op = {MoveAction.LEARN: Op.LEARNER, MoveAction.PROMOTE: Op.VOTER}.get(
                    step.action, Op.REMOVE
                )
                changes = tuple(MemberChange(op, node) for node in step.nodes)
                group.propose_change(ConfChange(changes), self.taken)
            self.work(member)

    def taken(self, result: Result) -> None:
        self.counts["changes"] += isinstance(result, CommandResult)

    def work(self, member: Member) -> None:
        super().work(member)
        for config in member.groups[GROUP].open_configs:
            self.check_config(config)

    def check_config(self, config: Config) -> None:
        if config.members:
            assert any(goal <= config.voters for goal in self.goals), f"{config} is too small"

    # The end.

    def heal_round(self) -> None:
        super().heal_round()
        if not self.crashes:
            self.seen = dict.fromkeys(self.seen, self.assigned)
            if (member := self.a_leader(GROUP)) is not None:
                self.decide_of(member)
            while self.decided:
                self.take()
            if self.now % 10 == 0:
                self.ask_all()

    def ask_all(self) -> None:
        """Members without a leader ask whether they are still members, as nodes do."""
        for member in self.members.values():
            group = member.groups[GROUP]
            if not group.leader and group.config.members:
                for other in NAMES:
                    self.network.append((GROUP, MemberQuery(member.name, other, group.term)))

    def all_the_same(self, name: str, index: int) -> bool:
        if not super().all_the_same(name, index):
            return False
        assignment, leader = self.assigned.assignment, self.a_leader(GROUP)
        if assignment.pending or leader is None:
            return False
        wanted = set(assignment.stable)
        config = leader.groups[GROUP].config
        if (set(config.voters), set(config.members)) != (wanted, wanted):
            return False
        others = (self.members[each].groups[GROUP] for each in NAMES if each not in wanted)
        return all(not group.config.members for group in others)


def simulate(seed: int, steps: int = 1200) -> RebalanceWorld:
    return simulated(RebalanceWorld, seed, steps)


def main() -> None:
    counts: Counter[str] = Counter()
    for world in worlds(RebalanceWorld, seeds=100, steps=1200):
        counts += world.counts
    print(", ".join(f"{n} {what}" for what, n in counts.items()))


if __name__ == "__main__":
    main()
