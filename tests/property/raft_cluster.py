"""Whole members of Raft groups in a bad world: core, storage, machine, disks; driven by one seed.

    python -m tests.property.raft_cluster [--seeds N] [--first SEED] [--steps N]

Every member has its own disk, on which any operation may be the last: what was not durable may then
be there, in part or not at all. Its write-ahead log, its segment writer and its worker do their
work when the world lets them, as threads would. Messages are lost, doubled, late and out of order,
links break, clocks run at different speeds, members come and go and delete their files when they
learn that they were removed, snapshots are taken and sent, segments dropped and merged,
live entries rewritten at the head of the log. Many worlds have two or three groups, each with its
own leader, over one write-ahead log: a file that is rolled or kept because one of them installs a
snapshot has entries of all. Checked:

- every member of a group applies the same command at each index
- after each restart, every live entry can be read and is the one that its key is about
- clients' histories are linearizable, key by key; what was answered stays
- in the end the world heals: all members come to the same state, and all values can be read there

A clock of the world counts steps: an operation is called and answered at steps of it.
"""

from __future__ import annotations

import contextlib
import random
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any

from lithify.clock import ManualClock
from lithify.errors import LithifyError, WriteFailed
from lithify.fs import MemoryFileSystem
from lithify.raft.commands import CommandResult, CommandResults, Result
from lithify.raft.compaction.settings import GroupCompactionSettings
from lithify.raft.core import (
    ConfChange,
    Config,
    CoreSettings,
    Dropped,
    MemberChange,
    Mode,
    Op,
    PeerChanged,
)
from lithify.raft.core.errors import InvalidChange
from lithify.raft.group.removed_members import (
    NEVER_LEFT,
    MemberQuery,
    MemberRemoved,
    RemovedMembership,
)
from lithify.raft.group.settings import GroupSettings
from lithify.raft.kv import format as kv
from lithify.raft.net.wire_format import decode_frame, encode_frame
from lithify.raft.snapshots.messages import TransferMessage
from lithify.raft.snapshots.sending import SendingSettings
from lithify.raft.storage.segment_file import SegmentLimits
from lithify.raft.storage.storage import StorageSettings
from lithify.testing.faulty_fs import PowerCut
from tests.linearizable import Op as ClientOp
from tests.linearizable import explain, is_linearizable
from tests.property.raft_member import Member, WatchedMachine, check_live
from tests.property.seeds import simulated, worlds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from lithify.live_set import LiveSet
    from lithify.raft.core import RaftMessage
    from lithify.raft.group.group import Group
    from lithify.raft.kv.state import KvState
    from lithify.raft.machine import Machine

NAMES = ("n1", "n2", "n3", "n4", "n5")
KEYS = (b"a", b"b", b"c")
GROUPS = ("g", "h", "i")
HEAL_ROUNDS_MAX = 600


class World:
    heal_rounds_max = HEAL_ROUNDS_MAX
    group_names: tuple[str, ...] = GROUPS

    def __init__(self, seed: int) -> None:
        self.random = rng = random.Random(seed)
        self.clock = ManualClock()
        self.now = 0
        self.crashes = rng.random() < 0.8
        self.loss = rng.choice((0.0, 0.02, 0.1))
        self.groups = self.group_names[: rng.choice((1, 1, 2, 3))]
        self.applied: dict[str, dict[int, tuple[int, bytes]]] = {group: {} for group in self.groups}
        self.counts: Counter[str] = Counter()
        self.network: list[tuple[str, RaftMessage]] = []
        self.broken: set[frozenset[str]] = set()
        self.dead: dict[str, MemoryFileSystem] = {}
        self.members: dict[str, Member] = {}
        self.left: dict[str, RemovedMembership] = {}
        """What members that have deleted their files remember."""
        self.history: dict[tuple[str, bytes], list[ClientOp]] = {
            (group, key): [] for group in self.groups for key in KEYS
        }
        self.known: dict[tuple[str, bytes], bytes | None] = dict.fromkeys(self.history)
        self.values = 0
        self.storage_settings = StorageSettings(
            wal_bytes_max=rng.choice((400, 1500, 6000)),
            segments=SegmentLimits(rng.choice((3, 8, 20)), rng.choice((300, 1000))),
        )
        self.snapshot_entries = rng.choice((4, 12, 40))
        self.after_drops = rng.choice((1, 2, 5))
        self.voters = frozenset(NAMES[: rng.choice((3, 3, 5))])
        self.speeds = {name: rng.choice((0.2, 0.5, 0.5)) for name in NAMES}
        self.wal_share = rng.choice((1.0, 1.0, 0.1))
        """A slow write-ahead log beside a fast worker lets orders show that happen to be kept."""
        self.disks = {name: rng.choice((0.2, 0.6, 1.0)) for name in NAMES}
        for name in NAMES:
            self.start(name, MemoryFileSystem(clock=self.clock))
        storm = rng.choice((0.3, 1, 3)) if self.crashes else 0.3
        self.actions: list[tuple[float, Callable[[], None]]] = [
            (20, self.tick),
            (60, self.background),
            (100, self.deliver),
            (40, self.call),
            (1.5 * storm, self.change),
            (0.3 * storm, self.transfer),
            (0.5 * storm, self.crash),
            (6, self.restart),
            (1 * storm, self.break_link),
            (5 * storm, self.heal_link),
            (1, self.maintain),
            (2 * storm, self.ask_whether_member),
        ]

    def settings_of(self, name: str) -> GroupSettings:
        core = partial(
            CoreSettings,
            election_ticks=6,
            append_bytes_max=200,
            inflight_messages_max=4,
            inflight_bytes_max=600,
            apply_bytes_max=300,
        )
        return GroupSettings(
            Config(self.voters) if name in self.voters - self.left.keys() else Config(),
            snapshot_entries=self.snapshot_entries,
            sending=SendingSettings(150, resend_ticks=3, tries_max=4, backoff_ticks=4),
            receive_silence_ticks=15,
            compaction=GroupCompactionSettings(after_drops=self.after_drops, link_keep_ms=2000),
            clock=self.clock,
            core=core,
        )

    # The machine.

    def machine_of(self, group: str) -> Machine[Any]:
        return WatchedMachine(self.applied[group])

    def live_in(self, group: str, pieces: Iterable[bytes]) -> LiveSet:
        machine = self.machine_of(group)
        return machine.live_indexes(machine.load(pieces))

    def check_live(self, group: Group[Any]) -> None:
        check_live(group)

    def last_command(self) -> bytes:
        return kv.put(b"end", b"%d" % self.now)

    def contents(self, group: Group[Any]) -> object:
        """What must be the same on all members in the end."""
        return dict(group.state.rows.items())

    # Members.

    def start(self, name: str, disk: MemoryFileSystem) -> None:
        try:
            self.members[name] = Member(self, name, disk)
        except (PowerCut, OSError, WriteFailed):
            self.dead[name] = self.after_crash(disk)

    def after_crash(self, disk: MemoryFileSystem) -> MemoryFileSystem:
        self.counts["crashes"] += 1
        torn = self.random.random() < 0.7
        return disk.crash_clone(self.random) if torn else disk.kill_clone()

    @contextlib.contextmanager
    def running(self, member: Member) -> Iterator[None]:
        """Something happens in a member's process, which may be its end."""
        try:
            yield
        except PowerCut:
            self.end(member)

    def end(self, member: Member) -> None:
        del self.members[member.name]
        self.dead[member.name] = self.after_crash(member.disk)

    def work(self, member: Member) -> None:
        for name, group in member.groups.items():
            if group.compaction.observe().reached:
                # As the queue of a node does.
                group.compact()
            out = group.work()
            member.jobs += ((group, job) for job in out.jobs)
            member.reads += ((group, job) for job in out.reads)
            for message in out.messages:
                if self.random.random() < 0.05:
                    frame = memoryview(encode_frame([(name, message)]))
                    assert decode_frame(frame, message.sender, message.to) == [(name, message)]
                self.counts["transfers"] += isinstance(message, TransferMessage)
                lost = self.random.random() < self.loss
                if not lost and frozenset((message.sender, message.to)) not in self.broken:
                    self.network.append((name, message))

    def one(self) -> Member | None:
        return self.random.choice(list(self.members.values())) if self.members else None

    def a_group(self) -> str:
        return self.random.choice(self.groups)

    def a_leader(self, group: str) -> Member | None:
        leaders = [member for member in self.members.values() if member.leads(group)]
        return self.random.choice(leaders) if leaders else None

    # What happens.

    def run(self, steps: int) -> None:
        weights = [weight for weight, _ in self.actions]
        while not all(map(self.a_leader, self.groups)) and self.now < 50:
            # The first election is the dullest part of a life.
            self.now += 1
            self.heal_round()
        for _, action in self.random.choices(self.actions, weights, k=steps):
            self.now += 1
            action()
        self.heal()
        self.check_history()

    def tick(self) -> None:
        self.clock.advance(0.1)
        for member in list(self.members.values()):
            if self.random.random() < self.speeds[member.name]:
                with self.running(member):
                    self.tick_groups(member)
                    self.work(member)

    def tick_groups(self, member: Member) -> None:
        for group in member.groups.values():
            group.tick()

    def background(self) -> None:
        for member in list(self.members.values()):
            can = member.background() if self.random.random() < self.disks[member.name] else []
            if can:
                with self.running(member):
                    self.random.choice(can)()
                    self.work(member)

    def deliver(self) -> None:
        for _ in range(min(len(self.network), self.random.choice((2, 6, 15)))):
            in_order = self.random.random() < 0.8
            place = 0 if in_order else self.random.randrange(len(self.network))
            name, message = self.network[place]
            if self.random.random() >= 0.03:
                del self.network[place]
            self.hand_over(name, message)

    def hand_over(self, name: str, message: RaftMessage) -> None:
        member = self.members.get(message.to)
        if member is None:
            return
        group = member.groups[name]
        if isinstance(message, MemberQuery):
            word = group.removal_notice(message.sender)
            self.network += [] if word is None else [(name, word)]
            if word is None:
                group.report(PeerChanged(message.sender))
        elif isinstance(message, MemberRemoved):
            # Who leaves begins with an empty disk here, and with it would lose the other groups.
            if len(self.groups) == 1 and group.believes(message):
                self.counts["leaves"] += 1
                before = self.left.get(member.name, NEVER_LEFT)
                self.left[member.name] = before.again(group.status())
                del self.members[member.name]
                self.start(member.name, MemoryFileSystem(clock=self.clock))
        elif self.left.get(member.name, NEVER_LEFT).hears(message):
            with self.running(member):
                group.receive(message)
                self.work(member)

    def ask_whether_member(self) -> None:
        name = self.a_group()
        if (member := self.one()) is not None and not member.groups[name].leader:
            for other in NAMES:
                query = MemberQuery(member.name, other, member.groups[name].term)
                self.network.append((name, query))

    def change(self) -> None:
        group = self.a_group()
        member = self.a_leader(group)
        if member is None:
            return
        names = self.random.sample(NAMES, self.random.choice((1, 1, 2)))
        changes = tuple(MemberChange(self.random.choice(list(Op)), name) for name in names)
        change = ConfChange(changes, self.random.choice((Mode.AUTO, Mode.JOINT)))
        with self.running(member):
            member.groups[group].propose_change(change, self.changed)
            self.work(member)

    def changed(self, result: Result) -> None:
        self.counts["changes"] += isinstance(result, CommandResult)

    def transfer(self) -> None:
        group = self.a_group()
        if (member := self.a_leader(group)) is not None:
            with self.running(member), contextlib.suppress(Dropped, InvalidChange):
                member.groups[group].transfer(self.random.choice(NAMES))
                self.work(member)

    def crash(self) -> None:
        if self.crashes and (member := self.one()) is not None:
            self.end(member)

    def restart(self) -> None:
        if self.dead:
            name = self.random.choice(list(self.dead))
            self.start(name, self.dead.pop(name))

    def break_link(self) -> None:
        one, two = self.random.sample(NAMES, 2)
        links = {frozenset((one, two))}
        if self.random.random() < 0.6:
            leader = self.a_leader(self.a_group())
            one = one if leader is None else leader.name
            links = {frozenset((one, name)) for name in NAMES if name != one}
        self.broken |= links

    def heal_link(self) -> None:
        if self.random.random() < 0.5:
            self.broken.clear()
        elif self.broken:
            self.broken.remove(self.random.choice(sorted(self.broken, key=sorted)))

    def maintain(self) -> None:
        if (member := self.one()) is not None:
            with self.running(member):
                group = member.groups[self.a_group()]
                self.random.choice((group.take_snapshot, group.compact, group.rewrite))()
                self.work(member)

    # Clients.

    def call(self) -> None:
        rng = self.random
        name = self.a_group()
        leader = self.a_leader(name)
        member = self.one() if leader is None or self.random.random() < 0.2 else leader
        if member is None or member.calls > 4 * len(self.groups):
            return
        group = member.groups[name]
        if not (group.leader or rng.random() < 0.1):
            return
        key = self.random.choice(KEYS)
        self.values += 1
        value = b"%d" % self.values + b"." * self.random.choice((0, 10, 60))
        kind = self.random.choice(("put", "put", "put", "cas", "get", "get", "delete"))
        op = ClientOp(kind, self.now, None if kind in ("get", "delete") else value)
        place = (name, key)
        done = partial(self.answered, member, place, op)
        self.history[place].append(op)
        member.calls += 1
        if kind == "put":
            self.propose(group, kv.put(key, value), done)
        elif kind == "cas":
            op.expected = self.known[place]
            self.propose(group, kv.compare_and_set(key, value, op.expected), done)
        elif kind == "delete":
            self.propose(group, kv.delete(key), done)
        else:
            group.read(kv.get(key), done)
        with self.running(member):
            self.work(member)

    def propose(
        self, group: Group[KvState], command: bytes, done: Callable[[Result], None]
    ) -> None:
        """As one of a run, in which the others do nothing; each of it must be answered once."""
        place, size = self.random.choice(((0, 1), (0, 1), (0, 3), (1, 3), (4, 5)))
        run = [b""] * size
        run[place] = command
        told: set[int] = set()

        def ended(stretch: slice, result: CommandResults | LithifyError) -> None:
            places = range(size)[stretch]
            assert places
            assert told.isdisjoint(places), "answered twice"
            told.update(places)
            at = place - places.start
            if isinstance(result, CommandResults):
                assert len(places) == len(result.replies)
                if place in places:
                    done(CommandResult(result.index + at, result.replies[at]))
            elif place in places:
                done(result)

        group.propose_many(run, ended)

    def answered(
        self, member: Member, place: tuple[str, bytes], op: ClientOp, result: Result
    ) -> None:
        if self.members.get(member.name) is not member and member.name in self.members:
            raise AssertionError("an answer of a dead member")
        member.calls -= 1
        if isinstance(result, Dropped):
            # Nothing has happened, and nothing will.
            self.history[place] = [other for other in self.history[place] if other is not op]
            self.counts["dropped"] += 1
            return
        if not isinstance(result, CommandResult):
            self.counts["unknown"] += 1
            return
        self.counts[op.kind] += 1
        op.returned = self.now
        reply = kv.parse_reply(result.reply)
        if op.kind == "get":
            op.answer = reply.value if reply.outcome is kv.KvOutcome.DONE else None
            self.known[place] = op.answer
        else:
            op.answer = reply.outcome is kv.KvOutcome.DONE

    def check_history(self) -> None:
        for place, ops in self.history.items():
            assert is_linearizable(ops), f"{place} is not linearizable\n{explain(ops)}"

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
        final: dict[str, int] = {}
        for _ in range(self.heal_rounds_max):
            self.now += 1
            self.heal_round()
            for name in self.groups:
                leader = self.a_leader(name)
                if name not in final and leader is not None:
                    done = partial(self.ended, final, name)
                    leader.groups[name].propose(self.last_command(), done)
            if all(name in final and self.all_the_same(name, final[name]) for name in self.groups):
                return
        everyone = self.members.values()
        lines = [str(group.status()) for each in everyone for group in each.groups.values()]
        raise AssertionError("no progress\n" + "\n".join(lines))

    def ended(self, final: dict[str, int], name: str, result: Result) -> None:
        if isinstance(result, CommandResult):
            final[name] = result.index

    def heal_round(self) -> None:
        self.clock.advance(0.1)
        for member in list(self.members.values()):
            with self.running(member):
                self.tick_groups(member)
                self.work(member)
                for _ in range(12):
                    for act in member.background():
                        act()
                    self.work(member)
        network, self.network = self.network, []
        for name, message in network:
            self.hand_over(name, message)

    def all_the_same(self, name: str, index: int) -> bool:
        """All members of the newest configuration are that far, and have the same."""
        leaders = [member.groups[name] for member in self.members.values() if member.leads(name)]
        if not leaders:
            return False
        leader = max(leaders, key=lambda group: group.term)
        members = leader.config.members | {leader.node}
        groups = [self.members[member].groups[name] for member in members]
        if any(group.applied_index < index for group in groups):
            return False
        if len({group.applied_index for group in groups}) > 1:
            return False
        for group in groups:
            assert self.contents(group) == self.contents(leader), "two states"
            self.check_live(group)
        return True


def simulate(seed: int, steps: int = 1200) -> World:
    return simulated(World, seed, steps)


def main() -> None:
    counts: Counter[str] = Counter()
    for world in worlds(World, seeds=100, steps=1200):
        counts += world.counts
    print(", ".join(f"{n} {what}" for what, n in counts.items()))


if __name__ == "__main__":
    main()
