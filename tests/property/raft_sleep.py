"""Whole members of a group that sleeps when it is idle, in a bad world, by one seed.

    python -m tests.property.raft_sleep [--seeds N] [--first SEED] [--steps N]

The world is that of `raft_cluster.py`. In addition each member watches the processes of the others
as a node does (`PeerLiveness`), by messages that are lost, late and out of order too, also those of
a process that has ended; and only groups that need it are ticked (`GroupTicks`). Clients pause, so
that the group falls asleep in the middle of partitions, crashes, transfers, changes of members.

Checked, beside what that world checks:

- a leader that sleeps has a log that all members of its term have
- no member stops
- when the world has healed, and no client asks for anything: the whole group falls asleep, and
  when the process of its leader ends then, another one leads within `NOTICE_ROUNDS`
- no member sleeps on under a leader that is none, or that does not count it as a member
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

from lithify.raft.core import CoreSettings, PeerChanged
from lithify.raft.core.quorum import has_quorum
from lithify.raft.group.removed_members import MemberQuery
from lithify.raft.node.group_ticks import GroupTicks
from lithify.raft.node.peer_liveness import PeerLiveness
from tests.property.raft_cluster import NAMES, World
from tests.property.seeds import simulated, worlds

if TYPE_CHECKING:
    from collections.abc import Callable

    from lithify.fs import MemoryFileSystem
    from lithify.raft.core import Status
    from lithify.raft.group.settings import GroupSettings
    from tests.property.raft_member import Member

GROUP = "g"
ELECTION_TICKS = 6
CHECK_TICKS = 150
"""Far above `NOTICE_ROUNDS`: checks do not hide that a death was not noticed."""
NOTICE_ROUNDS = 70
"""Some elections; the first one may fail."""
STALE_ROUNDS = 5 * CHECK_TICKS
SLEEP_ROUNDS = 300


class Sleeping(World):
    group_names = (GROUP,)

    def __init__(self, seed: int) -> None:
        self.liveness: dict[str, PeerLiveness] = {}
        self.ticks: dict[str, GroupTicks] = {}
        self.late: list[tuple[str, str, int]] = []
        """(sender, receiver, epoch) of messages between processes."""
        self.is_quiet = False
        super().__init__(seed)
        self.actions.append((2, self.pause))

    def settings_of(self, name: str) -> GroupSettings:
        given = super().settings_of(name)
        made, liveness = given.core, self.liveness[name]
        ticks = self.random.choice((3, 8))

        def core(node: str, draw: Callable[[int], int]) -> CoreSettings:
            return replace(made(node, draw), sleep_ticks=ticks, epoch_of=liveness.epoch_of)

        return replace(given, core=core)

    def start(self, name: str, disk: MemoryFileSystem) -> None:
        self.liveness[name] = PeerLiveness(name, self.random.randrange, ELECTION_TICKS)
        self.ticks[name] = GroupTicks(CHECK_TICKS)
        super().start(name, disk)
        if name in self.members:
            self.ticks[name].worked(GROUP, self.members[name].groups[GROUP])

    # What happens.

    def pause(self) -> None:
        """No client asks for anything, for a while."""
        self.is_quiet = self.random.random() < 0.7

    def call(self) -> None:
        if not self.is_quiet:
            super().call()

    def tick_groups(self, member: Member) -> None:
        liveness = self.liveness[member.name]
        for peer in liveness.tick():
            self.peer_changed(member, peer)
        self.ticks[member.name].tick()
        for name in NAMES:
            is_broken = frozenset((member.name, name)) in self.broken
            if name != member.name and not is_broken and self.random.random() >= self.loss:
                self.late.append((member.name, name, liveness.epoch_of(member.name)))
        self.hear_some()

    def hear_some(self) -> None:
        late, self.late = self.late, []
        for sender, to, epoch in late:
            if self.random.random() < 0.1 and (self.crashes or self.loss):
                self.late.append((sender, to, epoch))
            elif (member := self.members.get(to)) and self.liveness[to].heard(sender, epoch):
                self.peer_changed(member, sender)

    def peer_changed(self, member: Member, peer: str) -> None:
        for group in member.groups.values():
            group.report(PeerChanged(peer))

    def work(self, member: Member) -> None:
        super().work(member)
        group = member.groups[GROUP]
        self.ticks[member.name].worked(GROUP, group)
        assert group.stopped is None, f"{member.name} stopped: {group.stopped}"
        status = group.status()
        if status.asleep and member.leads(GROUP):
            self.counts["asleep"] += 1
            self.check_leader(status)

    def check_leader(self, status: Status) -> None:
        for name in status.config.members & self.members.keys():
            other = self.members[name].groups[GROUP].status()
            # One of another term has left it, and may be another member of this name by now.
            has_all = other.last_index >= status.last_index or other.term != status.term
            assert has_all, f"{status.node} sleeps, and {name} has not everything"

    # The end.

    def heal(self) -> None:
        self.broken.clear()
        self.loss = 0
        self.crashes = False
        self.wal_share = 1
        while self.dead:
            self.restart()
        for member in list(self.members.values()):
            member.fs.clear()
        self.until(self.has_leader, 4 * NOTICE_ROUNDS, "no leader")
        self.until(self.is_asleep, SLEEP_ROUNDS, "no sleep")
        for _ in range(2):
            name = self.leader_of_all()
            assert name is not None
            configs = self.members[name].groups[GROUP].open_configs
            self.end(self.members[name])
            others = self.members.keys()
            if self.random.random() < 0.7 and all(has_quorum(each, others) for each in configs):
                self.until(self.has_leader, NOTICE_ROUNDS, f"no leader after {name}")
            self.restart()
            self.until(self.has_leader, NOTICE_ROUNDS, f"no leader with {name}")
            self.until(self.is_asleep, SLEEP_ROUNDS, "no sleep again")
        self.until(self.is_nobody_stale, STALE_ROUNDS, "a stale sleeper")
        super().heal()

    def until(self, holds: Callable[[], bool], rounds: int, what: str) -> None:
        for number in range(rounds):
            if holds():
                return
            self.now += 1
            self.heal_round()
            if number % 10 == 9:
                self.ask_for_lonely()
        lines = [str(each.groups[GROUP].status()) for each in self.members.values()]
        raise AssertionError(what + "\n" + "\n".join(lines))

    def ask_for_lonely(self) -> None:
        for member in self.members.values():
            group = member.groups[GROUP]
            if not group.leader:
                others = (name for name in NAMES if name != member.name)
                queries = (MemberQuery(member.name, name, group.term) for name in others)
                self.network += ((GROUP, query) for query in queries)

    def leader_of_all(self) -> str | None:
        """The member that leads, if each member that it counts follows it."""
        leading = [each for each in self.members.values() if each.leads(GROUP)]
        if not leading:
            return None
        newest = max(leading, key=lambda each: each.groups[GROUP].term).groups[GROUP]
        members = newest.config.members
        groups = [each.groups[GROUP] for each in self.members.values() if each.name in members]
        same = {(group.leader, group.term) for group in groups}
        return newest.node if same == {(newest.node, newest.term)} else None

    def has_leader(self) -> bool:
        return self.leader_of_all() is not None

    def is_asleep(self) -> bool:
        name = self.leader_of_all()
        if name is None:
            return False
        members = self.members[name].groups[GROUP].config.members
        return all(
            each.groups[GROUP].status().asleep
            for each in self.members.values()
            if each.name in members
        )

    def is_nobody_stale(self) -> bool:
        name = self.leader_of_all()
        if name is None:
            return False
        known = self.members[name].groups[GROUP].config.members
        return not any(
            each.groups[GROUP].status().asleep
            for each in self.members.values()
            if each.name not in known
        )


def simulate(seed: int, steps: int = 1500) -> Sleeping:
    return simulated(Sleeping, seed, steps)


def main() -> None:
    counts: Counter[str] = Counter()
    for world in worlds(Sleeping, seeds=100, steps=1500):
        counts += world.counts
    print(", ".join(f"{n} {what}" for what, n in counts.items()))


if __name__ == "__main__":
    main()
