"""A group of consensus cores in a bad world, driven by one seed.

    python -m tests.property.raft_simulator [--seeds N] [--first SEED] [--steps N]

Messages are lost, doubled and reordered, links break, members crash with any part of their writes
done, snapshots pass others' logs, members come and go. Checked after every step:

- election safety: one leader a term
- log matching: the same index and term mean the same entry after the same entry
- leader completeness: who is elected has everything that was committed before
- state machine safety: every member applies the same at each index
- durability: a vote, a vote request or an acknowledgement leaves only when the disk has it
- linearizable reads: a read's index is not below what any member had applied when it began

In the end the world heals, and a new command must reach all members.
"""

from __future__ import annotations

import contextlib
import random
from typing import TYPE_CHECKING

from lithify.raft.core import (
    AppendReply,
    ConfChange,
    Config,
    CoreSettings,
    Dropped,
    EntryKind,
    InvalidChange,
    MemberChange,
    Mode,
    Op,
    Role,
    SnapshotStatus,
    Unreachable,
    VoteReply,
    VoteRequest,
)
from lithify.testing.raft_stage import Actor, Stage
from tests.property.seeds import simulated, worlds

if TYPE_CHECKING:
    from collections.abc import Callable

    from lithify.raft.core.messages import RaftMessage
    from lithify.raft.core.ready import Ready
    from lithify.raft.entry import Entry

NAMES = ("n1", "n2", "n3", "n4", "n5")
HEAL_ROUNDS_MAX = 400


class World:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.stage = Stage()
        self.dead: dict[str, Actor] = {}
        self.broken: set[frozenset[str]] = set()
        self.loss = self.random.choice((0.0, 0.05, 0.2))
        self.leaders: dict[int, str] = {}
        self.known: dict[tuple[int, int], tuple[int, int, bytes]] = {}
        self.committed: dict[int, int] = {}
        self.applied: dict[int, Entry] = {}
        self.reads: dict[int, int] = {}
        self.reads_answered = 0
        self.commands = 0
        storm = self.random.choice((0.5, 2, 5))
        self.disks = {name: self.random.choice((0.1, 0.5, 1.0)) for name in NAMES}
        self.clocks = {name: self.random.choice((0.05, 0.5, 0.5)) for name in NAMES}
        voters = frozenset(NAMES[: self.random.choice((1, 3, 3, 5))])
        for name in NAMES:
            settings = CoreSettings(
                name,
                self.random.randrange,
                election_ticks=5,
                append_bytes_max=100,
                inflight_messages_max=3,
                inflight_bytes_max=250,
                uncommitted_bytes_max=200,
                apply_bytes_max=100,
            )
            self.stage.add(settings, Config(voters) if name in voters else Config())
        self.actions: list[tuple[float, Callable[[], None]]] = [
            (18, self.tick),
            (60, self.collect),
            (40, self.write),
            (30, self.apply),
            (80, self.deliver),
            (12, self.propose),
            (4 * storm, self.change),
            (4, self.read),
            (0.7 * storm, self.transfer),
            (1 * storm, self.crash),
            (6 * storm, self.restart),
            (1 * storm, self.break_link),
            (3 * storm, self.heal_link),
            (2, self.compact),
            (6, self.snapshot),
            (0.7 * storm, self.forget),
        ]

    def run(self, steps: int) -> None:
        weights = [weight for weight, _ in self.actions]
        for _, action in self.random.choices(self.actions, weights, k=steps):
            action()
        self.heal()

    # What happens.

    def one(self) -> str | None:
        return self.random.choice(list(self.stage.actors)) if self.stage.actors else None

    def tick(self) -> None:
        for name, actor in self.stage.actors.items():
            if self.random.random() < self.clocks[name]:
                actor.core.tick()

    def collect(self) -> None:
        if self.random.random() < 0.3:
            for name in self.stage.actors:
                self.collect_of(name)
        elif one := self.one():
            self.collect_of(one)

    def collect_of(self, name: str) -> Ready:
        ready = self.stage.collect(name)
        self.check_ready(name, ready)
        for message in ready.messages:
            lost = self.random.random() < self.loss
            if lost or frozenset((message.sender, message.to)) in self.broken:
                self.stage.network.remove(message)
        return ready

    def write(self) -> None:
        for name, actor in self.stage.actors.items():
            if actor.writes and self.random.random() < self.disks[name]:
                self.stage.write(name)

    def apply(self) -> None:
        if (name := self.one()) and self.stage.actors[name].applies:
            self.apply_of(name)

    def apply_of(self, name: str) -> None:
        entries = self.stage.apply(name)
        for entry in entries:
            assert self.applied.setdefault(entry.index, entry) == entry, "two states"

    def deliver(self) -> None:
        network = self.stage.network
        for _ in range(min(len(network), self.random.choice((1, 3, 8)))):
            # Mostly in order, as links do; sometimes any.
            early = self.random.random() < 0.8
            message = network[0] if early else self.random.choice(network)
            self.stage.deliver(message, keep=self.random.random() < 0.05)

    def propose(self) -> None:
        if leader := self.a_leader():
            self.commands += 1
            payloads = [b"%d" % self.commands] * self.random.choice((1, 1, 3))
            self.attempt(lambda: self.stage.actors[leader].core.propose_many(payloads))

    def change(self) -> None:
        leader = self.a_leader()
        if leader is None:
            return
        names = self.random.sample(NAMES, self.random.choice((1, 1, 2, 3)))
        changes = tuple(MemberChange(self.random.choice(list(Op)), name) for name in names)
        change = ConfChange(changes, self.random.choice(list(Mode)))
        if self.random.random() < 0.3:
            change = ConfChange()
        core = self.stage.actors[leader].core
        self.attempt(lambda: core.propose_change(core.prepared(change)))

    def read(self) -> None:
        name = self.a_leader() if self.random.random() < 0.5 else self.one()
        if name is not None:
            context = len(self.reads)
            self.reads[context] = max(self.applied, default=0)
            self.attempt(lambda: self.stage.actors[name].core.read(context))

    def transfer(self) -> None:
        if leader := self.a_leader():
            target = self.random.choice(NAMES)
            self.attempt(lambda: self.stage.actors[leader].core.transfer(target))

    def attempt(self, act: Callable[[], object]) -> None:
        with contextlib.suppress(Dropped, InvalidChange):
            act()

    def a_leader(self) -> str | None:
        leaders = [n for n, a in self.stage.actors.items() if a.core.status().role is Role.LEADER]
        return self.random.choice(leaders) if leaders else None

    def crash(self) -> None:
        if name := self.one():
            actor = self.dead[name] = self.stage.crash(name)
            # Any part of what was handed out may have reached the disk, in order, unacknowledged.
            for append in list(actor.writes)[: self.random.randrange(len(actor.writes) + 1)]:
                actor.storage.write(append)

    def restart(self) -> None:
        if self.dead:
            name = self.random.choice(list(self.dead))
            self.stage.restart(self.dead.pop(name))

    def break_link(self) -> None:
        one, two = self.random.sample(NAMES, 2)
        links = {frozenset((one, two))}
        if self.random.random() < 0.6:
            # A leader that is cut off continues for a while, with entries that are not committed.
            one = self.a_leader() or one
            links = {frozenset((one, name)) for name in NAMES if name != one}
        self.broken |= links

    def heal_link(self) -> None:
        if self.random.random() < 0.5:
            self.broken.clear()
        elif self.broken:
            self.broken.remove(self.random.choice(sorted(self.broken, key=sorted)))

    def compact(self) -> None:
        if name := self.one():
            actor = self.stage.actors[name]
            indexes = [i for i in actor.configs if actor.storage.snapshot().index < i]
            if indexes:
                index = self.random.choice(indexes)
                self.stage.compact(name, index)

    def snapshot(self) -> None:
        if (name := self.one()) and (sends := self.stage.actors[name].sends):
            request = self.random.choice(sends)
            actor = self.stage.actors[name]
            if self.random.random() < 0.3:
                sends.remove(request)
                actor.core.step(SnapshotStatus(request.peer, 0, ok=False))
            else:
                sent = self.stage.send_snapshot(name, request)
                # The driver may be wrong about it either way, but it always says something.
                ok = self.random.random() < 0.8
                actor.core.step(SnapshotStatus(request.peer, sent.index, ok=ok))

    def forget(self) -> None:
        if name := self.one():
            if self.random.random() < 0.5:
                self.stage.actors[name].core.forget_leader()
            else:
                self.stage.actors[name].core.step(Unreachable(self.random.choice(NAMES)))

    # What must hold.

    def check_ready(self, name: str, ready: Ready) -> None:
        actor = self.stage.actors[name]
        log = actor.core.log
        if ready.append is not None and ready.append.entries:
            before = log.term(ready.append.entries[0].index - 1)
            for entry in ready.append.entries:
                facts = (before, entry.kind, entry.payload)
                assert self.known.setdefault((entry.index, entry.term), facts) == facts, "logs"
                before = entry.term
        self.check_commit(actor)
        if ready.role is Role.LEADER and ready.term not in self.leaders:
            for index, term in self.committed.items():
                if index >= log.first_index - 1 and term < ready.term:
                    assert log.matches(index, term), f"{name} leads without {index}/{term}"
        if ready.role is Role.LEADER:
            assert self.leaders.setdefault(ready.term, name) == name, "two leaders"
        for message in ready.messages:
            self.check_message(actor, message)
        for read in ready.reads:
            assert read.index >= self.reads[read.context], "a stale read"
            self.reads_answered += 1

    def check_commit(self, actor: Actor) -> None:
        log = actor.core.log
        for index in range(max(log.committed, log.first_index), log.first_index - 1, -1):
            if index > log.committed or index in self.committed:
                break
            self.committed[index] = log.term(index)
        if log.committed >= log.first_index:
            term = log.term(log.committed)
            assert self.committed[log.committed] == term, "committed twice"

    def check_message(self, actor: Actor, message: RaftMessage) -> None:
        disk = actor.storage
        state = disk.hard_state()
        assert not isinstance(message, VoteRequest) or message.pre or state.term >= message.term
        if isinstance(message, VoteReply) and message.granted and not message.pre:
            assert (state.term, state.vote) == (message.term, message.to) or (
                state.term > message.term
            ), "a vote left before it was durable"
        if isinstance(message, AppendReply) and not message.rejected and state.term <= message.term:
            # Of an older term it was true when it was released, and says no more than that.
            assert message.index <= max(disk.last_index(), disk.snapshot().index), (
                "acknowledged before durable"
            )

    def heal(self) -> None:
        self.broken.clear()
        self.loss = 0
        while self.dead:
            self.restart()
        payload = None
        for _ in range(HEAL_ROUNDS_MAX):
            for name in self.stage.actors:
                self.stage.actors[name].core.tick()
            for _ in range(3):
                self.work()
            leader = self.a_leader()
            if payload is None and leader is not None:
                try:
                    self.stage.actors[leader].core.propose(b"the end")
                    payload = b"the end"
                except Dropped:
                    continue
            if payload and self.everyone_has(payload):
                return
            if payload and self.random.random() < 0.02:
                payload = None  # lost with a leader that was unseated after all
        lines = [str(actor.core.status()) for actor in self.stage.actors.values()]
        raise AssertionError("no progress\n" + "\n".join(lines))

    def work(self) -> None:
        for name, actor in self.stage.actors.items():
            self.collect_of(name)
            while actor.writes:
                self.stage.write(name)
            while actor.applies:
                self.apply_of(name)
            for request in list(actor.sends):
                sent = self.stage.send_snapshot(name, request)
                actor.core.step(SnapshotStatus(request.peer, sent.index, ok=True))
        for message in list(self.stage.network):
            self.stage.deliver(message)

    def everyone_has(self, payload: bytes) -> bool:
        leader = self.a_leader()
        if leader is None:
            return False
        members = self.stage.actors[leader].core.config.members
        states = {self.stage.actors[name].state for name in members}
        return len(states) == 1 and bool(state := states.pop()) and state[-1][1] == payload


def simulate(seed: int, steps: int = 1500) -> World:
    return simulated(World, seed, steps)


def main() -> None:
    terms = commits = reads = changes = 0
    for world in worlds(World, seeds=1000, steps=1500):
        terms += len(world.leaders)
        commits += len(world.applied)
        reads += world.reads_answered
        changes += sum(entry.kind == EntryKind.CONFIG for entry in world.applied.values())
    print(f"{terms} leaders, {commits} entries, {reads} reads, {changes} changes of members")


if __name__ == "__main__":
    main()
