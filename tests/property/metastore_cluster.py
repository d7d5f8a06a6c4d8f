"""The metastore on whole members in a bad world, driven by one seed.

    python -m tests.property.metastore_cluster [--seeds N] [--first SEED] [--steps N]

The world is that of `raft_cluster.py`, with one group, whose machine is the metastore's. Each
member has the code of a node: it writes, reads, watches, purges, leads, ends leases and holds one.
Wall clocks jump. Checked, beside what that world checks:

- every member gives each command the same answer, however far it has purged
- a watcher gets every revision above its start once, in order, with the same content on all
  members; if it does not, it ends with `RevisionCompacted`, and the floor has passed it
- histories of keys are linearizable, compare by compare; keys that are always written together are
  always read together
- a lease ends only when its time has passed since it was last kept, and no holder believes in it
  then
- in the end all members give the same answers, and every watcher has got everything
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections import Counter
from contextlib import ExitStack, suppress
from random import Random
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from lithify.metastore import command_format as commands
from lithify.metastore import maintenance, queries, query_format
from lithify.metastore.errors import MetastoreUnavailable, RevisionCompacted, RevisionNotReached
from lithify.metastore.local_metastore import GROUP
from lithify.metastore.metastore import Change
from lithify.metastore.transaction import Compare, Condition, Delete, Put, Transaction
from lithify.raft.kv.format import digest_of
from lithify.raft.net.client_operations import MayHaveHappened
from tests.linearizable import Op
from tests.property.metastore_member import Life, ToldMachine, lease_told
from tests.property.raft_cluster import KEYS, World
from tests.property.seeds import simulated, worlds

if TYPE_CHECKING:
    from lithify.fs import MemoryFileSystem
    from lithify.metastore.metastore import Outcome, Revision
    from lithify.metastore.state import MetastoreState
    from lithify.raft.group.group import Group
    from lithify.raft.machine import Machine
    from tests.property.raft_member import Member

PAIR = (b"pair/1", b"pair/2")
TURNS = 4


class MetastoreWorld(World):
    group_names = (GROUP,)

    def __init__(self, seed: int) -> None:
        self.loop = asyncio.new_event_loop()
        self.lives: dict[str, Life] = {}
        self.marked: set[str] = set()
        """Members that have work."""
        self.in_flight: dict[str, set[asyncio.Future[Any]]] = {}
        """Requests, by the member that was asked."""
        self.replies: dict[int, bytes] = {}
        self.revisions: list[int] = []
        self.contents_of: dict[int, Revision] = {}
        self.told_s: dict[int, float] = {}
        """By lease: when it was granted or last kept."""
        self.floor = 0
        self.ttl_ms = Random(seed).choice((300, 1000, 3000))
        super().__init__(seed)
        self.actions = [each for each in self.actions if each[1] != self.maintain]
        self.actions += [
            (60, self.call),
            (3, self.maintain),
            (20, self.look_after_metastore),
            (12, self.lease),
            (3, self.compact),
            (2, self.slow_down),
            (3, self.go_on),
            (2, self.jump),
        ]

    # The machine.

    def machine_of(self, group: str) -> Machine[Any]:
        return ToldMachine(self)

    def applied_one(self, index: int, term: int, command: bytes, reply: bytes) -> None:
        fact = term, command
        assert self.applied[GROUP].setdefault(index, fact) == fact, f"two histories at {index}"
        is_first = index not in self.replies
        assert self.replies.setdefault(index, reply) == reply, f"two answers at {index}"
        if not is_first:
            return
        parsed = query_format.parse_reply(reply)
        if parsed.flags & query_format.CHANGED:
            assert index > (self.revisions or [0])[-1]
            self.revisions.append(index)
        if lease := lease_told(command, reply):
            self.told_s[lease] = self.clock.monotonic_s()
        kind = command[0]
        if kind == commands.CommandKind.COMPACT:
            self.floor = max(self.floor, parsed.number)
        if kind == commands.CommandKind.EXPIRE and parsed.flags & query_format.HELD:
            self.check_expired(commands.parse_numbers(commands.EXPIRE, command)[0])

    def check_expired(self, lease: int) -> None:
        self.counts["expired"] += 1
        known_s = self.clock.monotonic_s() - self.told_s[lease]
        assert known_s >= self.ttl_ms / 1000 - 1e-6, f"lease {lease} ended after {known_s} s"
        for life in self.lives.values():
            believes = life.held.id == lease and life.held.is_held
            assert not believes, f"{life.member.name} believes in {lease}"

    def check_live(self, member: Member, name: str) -> None:
        """Every value that can be read is in an entry that is there."""
        state: MetastoreState = member.groups[name].state
        live = list(state.live.live_set())
        stored = {
            each.index: each.payload[8:] for each in member.storage.groups[name].log.read(live)
        }
        columns = state.revisions
        for row in range(len(columns)):
            for key, kept in state.visible_values(row).items():
                entry = stored[columns.places[row]]
                values = commands.values_of(entry, otherwise=bool(columns.otherwise[row]))
                assert digest_of(values[key]) == kept[2]

    def last_command(self) -> bytes:
        put = Put(b"end", b"%d" % self.now)
        return commands.encode_transaction(Transaction(then=(put,)))

    def contents(self, group: Group[Any]) -> object:
        state: MetastoreState = group.state
        leases = {n: (each.ttl_ms, each.generation, each.keys) for n, each in state.leases.items()}
        return state.keys.newest, leases, state.revision, state.time, state.floor

    # Members.

    def start(self, name: str, disk: MemoryFileSystem) -> None:
        self.stop_life(name)
        super().start(name, disk)
        if name in self.members:
            # A follower in memory begins with what it knows: all, or nothing.
            member = self.members[name]
            revision = member.groups[GROUP].state.revision
            after = self.random.choice((0, revision))
            self.lives[name] = Life(self, member, after)

    def end(self, member: Member) -> None:
        self.stop_life(member.name)
        super().end(member)

    def stop_life(self, name: str) -> None:
        life = self.lives.pop(name, None)
        if life is not None:
            life.end()
        for future in self.in_flight.pop(name, set()):
            if not future.done():
                future.set_exception(MayHaveHappened(f"{name} has crashed"))

    def work(self, member: Member) -> None:
        super().work(member)
        life = self.lives.get(member.name)
        if life is not None and life.member is member:
            life.work()

    def leader_seen_by(self, member: Member) -> Member | None:
        name = member.groups[GROUP].leader
        if frozenset((member.name, name)) in self.broken:
            return None
        return self.members.get(name)

    def turn(self) -> None:
        """Run all tasks as far as possible."""
        while True:
            self.loop.run_until_complete(_turns())
            for life in self.lives.values():
                for task in [each for each in life.tasks if each.done()]:
                    life.tasks.discard(task)
                    if not task.cancelled():
                        task.result()
            marked, self.marked = self.marked & self.members.keys(), set()
            if not marked:
                return
            for name in sorted(marked):
                if name in self.members:
                    with self.running(self.members[name]):
                        self.work(self.members[name])

    def run(self, steps: int) -> None:
        try:
            super().run(steps)
        finally:
            for name in list(self.lives):
                self.stop_life(name)
            self.loop.run_until_complete(_turns())
            self.loop.close()

    # What happens.

    def deliver(self) -> None:
        super().deliver()
        self.turn()

    def background(self) -> None:
        super().background()
        self.turn()

    def a_life(self) -> Life | None:
        """Mostly one that can reach a leader."""
        lives = list(self.lives.values())
        if self.random.random() < 0.95:
            lives = [each for each in lives if self.leader_seen_by(each.member) is not None]
        return self.random.choice(lives) if lives else None

    def look_after_metastore(self) -> None:
        for life in list(self.lives.values()):
            if self.random.random() < 0.5 and life.member.name in self.members:
                with self.running(life.member):
                    life.maintenance.step()
                    self.work(life.member)

    def lease(self) -> None:
        if (life := self.a_life()) is not None and len(life.tasks) < 6:
            life.do(life.use_lease())

    async def put_with_lease(self, life: Life) -> None:
        name, lease = life.member.name.encode(), life.held.id
        await life.metastore.transact(Transaction(then=(Put(b"held/" + name, b"", lease),)))

    def compact(self) -> None:
        if (life := self.a_life()) is not None and self.revisions:
            back = self.random.choice((1, 3, 10))
            life.do(self.compact_to(life, self.revisions[-min(back, len(self.revisions))]))

    async def compact_to(self, life: Life, revision: int) -> None:
        with suppress(MayHaveHappened, MetastoreUnavailable, RevisionNotReached):
            await life.metastore.compact(revision)
            self.counts["compactions"] += 1

    def slow_down(self) -> None:
        life = self.a_life()
        if life is not None and life.gate is None:
            life.gate = asyncio.Event()

    def go_on(self) -> None:
        for life in self.lives.values():
            if life.gate is not None:
                life.gate.set()
                life.gate = None

    def jump(self) -> None:
        self.clock.jump(self.random.choice((-3600, -1, 1, 3600)))

    # Clients.

    def call(self) -> None:
        life = self.a_life()
        if life is None or len(life.tasks) > 6:
            return
        rng = self.random
        if rng.random() < 0.2:
            life.do(self.pair(life))
            return
        self.values += 1
        value = b"%d" % self.values + b"." * rng.choice((0, 10, 60))
        kind = rng.choice(("put", "put", "cas", "cas", "get", "get", "delete"))
        place = GROUP, rng.choice(KEYS)
        op = Op(kind, self.now, None if kind in ("get", "delete") else value)
        if kind == "cas":
            op.expected = self.known[place]
        self.history[place].append(op)
        life.do(self.execute(life, place, op))

    async def execute(self, life: Life, place: tuple[str, bytes], op: Op) -> None:
        try:
            if op.kind == "get":
                found = await life.metastore.get(place[1])
                op.answer = self.known[place] = None if found is None else found.value
            else:
                op.answer = answer_of(op, await life.metastore.transact(transaction(op, place[1])))
        except MayHaveHappened:
            self.counts["unknown"] += 1
        except MetastoreUnavailable:
            # Nothing has happened, and nothing will.
            self.history[place] = [other for other in self.history[place] if other is not op]
            self.counts["dropped"] += 1
        else:
            op.returned = self.now
            self.counts[op.kind] += 1

    async def pair(self, life: Life) -> None:
        """Write two keys at once, or read them; local reads and those of the past too."""
        rng, metastore = self.random, life.metastore
        self.values += 1
        value = b"%d" % self.values
        errors = MayHaveHappened, MetastoreUnavailable, RevisionCompacted, RevisionNotReached
        with suppress(*errors):
            if rng.random() < 0.5:
                await metastore.transact(Transaction(then=tuple(Put(key, value) for key in PAIR)))
                return
            revision = rng.choice((0, 0, *self.revisions[-5:]))
            local = rng.random() < 0.5
            found: list[bytes] = []
            start = b"pair/"
            while True:
                page = await metastore.range(start, b"pair0", revision=revision, local=local)
                found += [row.value for row in page.rows]
                if not page.more:
                    break
                start, revision = page.rows[-1].key + b"\0", page.revision
            assert len(set(found)) <= 1, found
            assert len(found) in (0, len(PAIR)), found
            self.counts["pairs"] += bool(found)

    def check_seen(self, life: Life, revision: Revision) -> None:
        """A watcher has got a revision: is it the next one, and the same as elsewhere?"""
        number = revision.revision
        assert life.member.groups[GROUP].applied_index >= number, "it is not applied"
        expected = self.revisions[bisect_right(self.revisions, life.seen)]
        assert number == expected, f"{number} after {life.seen}, where {expected} comes next"
        assert self.contents_of.setdefault(number, revision) == revision, "two contents"
        command = self.applied[GROUP][number][1]
        if command[0] == commands.CommandKind.TRANSACTION:
            values = commands.values_of(command, otherwise=False)
            for change in revision.changes:
                given = Change(change.key, values.get(change.key))
                assert change == given, "it is not what was written"
        self.counts["seen"] += 1

    def check_ended(self, life: Life, floor: int) -> None:
        """A watcher was told that revisions are compacted: has it not got some of them?"""
        assert life.seen < floor <= self.floor, "its watch was ended without a reason"
        self.counts["compacted watches"] += 1

    # The end.

    def heal_round(self) -> None:
        self.go_on()
        super().heal_round()
        self.turn()

    def all_the_same(self, name: str, index: int) -> bool:
        if not super().all_the_same(name, index):
            return False
        leaders = [member for member in self.members.values() if member.leads(GROUP)]
        config = leaders[0].groups[GROUP].config
        last = self.revisions[-1]
        return all(self.lives[member].seen >= last for member in config.members)


def transaction(op: Op, key: bytes) -> Transaction:
    if op.kind == "delete":
        return Transaction(then=(Delete(key),))
    assert op.value is not None
    put = (Put(key, op.value),)
    if op.kind == "put":
        return Transaction(then=put)
    if op.expected is None:
        return Transaction((Compare(key, Condition.ABSENT),), put)
    return Transaction((Compare(key, Condition.VALUE, value=op.expected),), put)


def answer_of(op: Op, outcome: Outcome) -> bool:
    return outcome.changed if op.kind == "delete" else outcome.succeeded


async def _turns() -> None:
    for _ in range(TURNS):
        await asyncio.sleep(0)


def small_limits() -> ExitStack:
    """Pages and batches so small that stories have many of them."""
    stack = ExitStack()
    stack.enter_context(patch.object(queries, "EXAMINED_MAX", 4))
    stack.enter_context(patch.object(query_format, "PAGE_ROWS_MAX", 3))
    stack.enter_context(patch.object(maintenance, "PURGE_CHANGES", 3))
    stack.enter_context(patch.object(maintenance, "REMOVED_MIN", 5))
    return stack


def simulate(seed: int, steps: int = 1200) -> MetastoreWorld:
    with small_limits():
        return simulated(MetastoreWorld, seed, steps)


def main() -> None:
    counts: Counter[str] = Counter()
    with small_limits():
        for world in worlds(MetastoreWorld, seeds=100, steps=1200):
            counts += world.counts
    print(", ".join(f"{n} {what}" for what, n in counts.items()))


if __name__ == "__main__":
    main()
