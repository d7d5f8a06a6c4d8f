"""A group of consensus cores among operators who make mistakes, driven by one seed.

    python -m tests.property.raft_operators [--seeds N] [--first SEED] [--steps N]

Some nodes never run, others die for good. Operators add nodes that do not run or whose addresses
are mistyped, remove healthy members while others are dead, promote, demote and replace several at
once, repeat what they did, give up half-way. Members that live crash and come back, messages are
lost. A member dies only if a majority of the voters stays, and operators act only when that has
been noticed: after an election timeout, as people do.

All promises of `raft_simulator.py` are checked, and one more: whatever operators have asked for, a
command is accepted and applied within `PATIENCE_ROUNDS` ticks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lithify.raft.core import (
    ConfChange,
    Config,
    Dropped,
    EntryKind,
    InvalidChange,
    MemberChange,
    Mode,
    Op,
)
from lithify.raft.core.quorum import has_quorum
from tests.property.raft_simulator import NAMES, World
from tests.property.seeds import simulated, worlds

if TYPE_CHECKING:
    from lithify.raft.core import RaftCore

NEVER_RUN = ("n6", "n7")
PATIENCE_ROUNDS = 80
"""Eight elections of at most twice five ticks each: some of them fail."""
NOTICE_ROUNDS = 12


class Operators(World):
    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.loss = self.random.choice((0.0, 0.0, 0.05))
        self.gone: set[str] = set()
        self.asked: list[ConfChange] = []
        self.accepted = 0
        self.refused = 0

    def run(self, steps: int) -> None:
        self.demand("at the start")
        for _ in range(steps // 20):
            self.random.choice((self.operate, self.operate, self.operate, self.die, self.stumble))()
            for _ in range(self.random.choice((0, 1, 2, 8))):
                self.round()
            if self.random.random() < 0.3:
                self.demand(f"after {', '.join(map(str, self.asked[-3:]))}")
        self.demand("in the end")

    def round(self) -> None:
        for actor in self.stage.actors.values():
            actor.core.tick()
        for _ in range(3):
            self.work()
        for name, actor in self.stage.actors.items():
            # A member that has just started applies its whole log, in pieces.
            self.collect_of(name)
            while actor.applies:
                self.apply_of(name)
                self.collect_of(name)

    # What happens.

    def operate(self) -> None:
        """Ask the leader for a change, as a node does; most are asked for more than once."""
        if not self.asked or self.random.random() < 0.4:
            names = self.random.sample((*NAMES, *NEVER_RUN), self.random.choice((1, 1, 1, 2, 3)))
            changes = tuple(MemberChange(self.random.choice(list(Op)), name) for name in names)
            mode = self.random.choice((Mode.AUTO, Mode.AUTO, Mode.JOINT))
            self.asked.append(ConfChange(changes, mode))
        change = self.asked[-self.random.choice((1, 1, 1, 2)) :][0]
        for _ in range(self.random.choice((1, 2, 4))):
            leader = self.a_leader()
            if leader is None:
                return
            try:
                propose(self.stage.actors[leader].core, change)
                self.accepted += 1
            except (Dropped, InvalidChange):
                self.refused += 1
            self.round()

    def die(self) -> None:
        """Lose a member for good, if the others can do without it."""
        name = self.one()
        if name is None:
            return
        alive = self.stage.actors.keys() - {name}
        if all(has_quorum(config, alive) for config in self.configs()):
            self.stage.crash(name)
            self.gone.add(name)
            for _ in range(NOTICE_ROUNDS):
                self.round()

    def stumble(self) -> None:
        """A member crashes and is back before an operator acts."""
        self.crash()
        for _ in range(self.random.choice((1, 10))):
            self.round()
        while self.dead:
            self.restart()
        for _ in range(NOTICE_ROUNDS):
            self.round()

    def configs(self) -> list[Config]:
        """All members that may turn out to be the committed ones."""
        cores = (actor.core for actor in self.stage.actors.values())
        return [config for core in cores for config in core.open_configs]

    # What must hold.

    def demand(self, when: str) -> None:
        """A command is accepted and applied, now."""
        proposed: set[bytes] = set()
        loss, self.loss = self.loss, 0.0
        for _ in range(PATIENCE_ROUNDS):
            self.round()
            leader = self.a_leader()
            if leader is None:
                continue
            actor = self.stage.actors[leader]
            if any(command in proposed for _, command in actor.state):
                self.loss = loss
                return
            try:
                self.commands += 1
                actor.core.propose(b"%d" % self.commands)
                proposed.add(b"%d" % self.commands)
            except Dropped:
                continue
        lines = [str(actor.core.status()) for actor in self.stage.actors.values()]
        lines += [str(actor.core.config) for actor in self.stage.actors.values()]
        gone = f"{sorted(self.gone)} are dead, {NEVER_RUN} never ran"
        raise AssertionError(f"no progress {when}; {gone}\n" + "\n".join(lines))


def propose(core: RaftCore, change: ConfChange) -> None:
    """What a node does with a client's change (`raft/group/proposals.py`)."""
    core.propose_change(core.prepared(change))


def simulate(seed: int, steps: int = 1500) -> Operators:
    return simulated(Operators, seed, steps)


def main() -> None:
    accepted = refused = gone = changes = 0
    for world in worlds(Operators, seeds=200, steps=1500):
        accepted += world.accepted
        refused += world.refused
        gone += len(world.gone)
        changes += sum(entry.kind == EntryKind.CONFIG for entry in world.applied.values())
    print(f"{accepted} changes accepted, {refused} refused, {changes} applied, {gone} died")


if __name__ == "__main__":
    main()
