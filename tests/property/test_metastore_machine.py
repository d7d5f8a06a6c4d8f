"""Two members of a metastore give the answers of a full history, and each other's.

The members apply the same commands, but purge, save, load and delete dead entries of their logs at
different times. The model keeps every value of every key; the floor decides what may be asked.
"""

from __future__ import annotations

from itertools import islice

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from lithify.metastore import command_format as commands
from lithify.metastore import query_format as replies
from lithify.metastore import revisions as revision_columns
from lithify.metastore.machine import MetastoreMachine
from lithify.metastore.metastore import Change, KeyValue, Revision
from lithify.metastore.query_format import MetastoreOutcome, MetastoreReply
from lithify.metastore.transaction import (
    Compare,
    Condition,
    Delete,
    DeleteRange,
    Operation,
    Put,
    Transaction,
)
from lithify.raft import ordered_key_set
from lithify.raft.machine import CommandBatch, QueryRead

KEYS = st.sampled_from([b"", b"a", b"aa", b"b", b"\xff"])
VALUES = st.sampled_from([b"", b"one", b"two", b"three" * 10])
BACK = st.integers(-1, 8)
"""Indexes before the newest one."""


class Member:
    """A machine, its state, and a log from which dead entries are deleted."""

    def __init__(self) -> None:
        self.machine = MetastoreMachine()
        self.state = self.machine.init()
        self.log: dict[int, bytes] = {}
        self.index = 0
        self.dead: set[int] = set()

    def apply(self, batch: list[tuple[int, bytes]]) -> list[bytes]:
        first = self.index + 1
        self.index += len(batch)
        self.log.update(enumerate((command for _, command in batch), first))
        entries = CommandBatch(first, 1, [time for time, _ in batch], [each for _, each in batch])
        self.state, found, effects = self.machine.apply_many(entries, 0, self.state)
        assert not effects
        return found

    def ask(self, query: bytes) -> MetastoreReply:
        reply = self.machine.query(self.state, query)
        while isinstance(reply, QueryRead):
            assert list(reply.indexes) == sorted(set(reply.indexes))
            reply = reply.then([self.log[index] for index in reply.indexes])
        return replies.parse_reply(reply)

    def trim(self) -> None:
        """Take a snapshot: from here on only live entries are in the log."""
        live = set(self.machine.live_indexes(self.state))
        columns, visible = self.state.revisions, self.state.visible_values
        # So every member has the same ones at an index, however it has purged before.
        assert live == {columns.places[row] for row in range(len(columns)) if visible(row)}
        assert live <= self.log.keys()
        assert not live & self.dead
        self.dead |= self.log.keys() - live
        self.log = {index: self.log[index] for index in sorted(live)}

    def load(self) -> None:
        self.state = self.machine.load(list(self.machine.save(self.state)))


class Model:
    """Every value of every key, and every lease."""

    def __init__(self) -> None:
        self.history: dict[bytes, list[tuple[int, bytes | None, int]]] = {}
        self.revisions: list[Revision] = []
        self.leases: dict[int, tuple[int, int]] = {}
        self.time = 0
        self.floor = 0

    @property
    def revision(self) -> int:
        return self.revisions[-1].revision if self.revisions else 0

    def at(self, key: bytes, revision: int) -> tuple[int, bytes, int] | None:
        found = [each for each in self.history.get(key, []) if each[0] <= revision]
        if not found or found[-1][1] is None:
            return None
        number, value, lease = found[-1]
        assert value is not None
        return number, value, lease

    def row(self, key: bytes, revision: int) -> KeyValue | None:
        found = self.at(key, revision)
        if found is None:
            return None
        times = {each.revision: each.timestamp for each in self.revisions}
        return KeyValue(key, found[1], found[0], times[found[0]], found[2])

    def rows(self, start: bytes, end: bytes, revision: int) -> list[KeyValue]:
        chosen = sorted(key for key in self.history if key >= start and (not end or key < end))
        found = (self.row(key, revision) for key in chosen)
        return [row for row in found if row is not None]

    def commit(self, index: int, changes: dict[bytes, tuple[bytes | None, int]]) -> None:
        for key, (value, lease) in changes.items():
            self.history.setdefault(key, []).append((index, value, lease))
        made = tuple(Change(key, value) for key, (value, _) in changes.items())
        self.revisions.append(Revision(index, self.time, made))

    def holds(self, compare: Compare) -> bool:
        found = self.at(compare.key, self.revision)
        revision = found[0] if found else 0
        match compare.condition:
            case Condition.ABSENT:
                return found is None
            case Condition.PRESENT:
                return found is not None
            case Condition.REVISION:
                return revision == compare.revision
            case Condition.REVISION_AT_MOST:
                return revision <= compare.revision
            case Condition.TIME_BELOW:
                return self.time < compare.time
            case Condition.RANGE_UNCHANGED:
                return compare.revision >= self.floor and not any(
                    each.revision > compare.revision
                    and any(
                        change.key >= compare.key and (not compare.end or change.key < compare.end)
                        for change in each.changes
                    )
                    for each in self.revisions
                )
        return found is not None and found[1] == compare.value

    def transact(self, index: int, transaction: Transaction) -> tuple[MetastoreOutcome, bool]:
        """The outcome, and whether the compares held."""
        held = all(map(self.holds, transaction.compares))
        values: dict[bytes, tuple[bytes | None, int]] = {}

        def has(key: bytes) -> bool:
            if key in values:
                return values[key][0] is not None
            return self.at(key, self.revision) is not None

        branch = transaction.then if held else transaction.otherwise
        for each in branch:
            if isinstance(each, Put):
                values[each.key] = each.value, each.lease
                continue
            chosen = [each.key] if isinstance(each, Delete) else self.first(each, values, has)
            for key in chosen:
                if self.at(key, self.revision) is not None:
                    values[key] = None, 0
                else:
                    values.pop(key, None)
        leases = {each.lease for each in branch if isinstance(each, Put)}
        if leases - self.leases.keys() - {0}:
            return MetastoreOutcome.LEASE_NOT_FOUND, False
        if values:
            self.commit(index, values)
        return MetastoreOutcome.DONE, held

    def first(self, each: DeleteRange, values, has) -> list[bytes]:  # type: ignore[no-untyped-def]
        keys = sorted({*self.history, *values})
        inside = (key for key in keys if key >= each.start and (not each.end or key < each.end))
        return list(islice((key for key in inside if has(key)), each.keys_max))

    def end_lease(self, index: int, lease: int) -> None:
        del self.leases[lease]
        rows = self.rows(b"", b"", self.revision)
        keys = [row.key for row in rows if row.lease == lease]
        if keys:
            self.commit(index, dict.fromkeys(keys, (None, 0)))


class TwoMembers(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(revision_columns, "FORGOTTEN_MIN", 2)
        self.patch.setattr(ordered_key_set, "ADDED_MAX", 1)
        self.members = [Member(), Member()]
        self.model = Model()
        self.clock = 10

    def teardown(self) -> None:
        self.patch.undo()

    def apply(self, command: bytes) -> MetastoreReply:
        one, other = (member.apply([(self.clock, command)])[0] for member in self.members)
        assert one == other
        reply = replies.parse_reply(one)
        if reply.outcome is not MetastoreOutcome.INVALID:
            self.model.time = max(self.model.time + 1, self.clock << 16)
            assert reply.time == self.model.time
        return reply

    @property
    def index(self) -> int:
        return self.members[0].index

    def lease(self, data: st.DataObject) -> int:
        return data.draw(st.sampled_from([0, 0, 0, 7, *self.model.leases]), label="lease")

    @rule(data=st.data(), keys=st.lists(KEYS, min_size=1, max_size=4))
    def transact(self, data: st.DataObject, keys: list[bytes]) -> None:
        def compare(key: bytes) -> Compare:
            revision = data.draw(st.sampled_from([0, self.model.revision, self.index]))
            found = self.model.at(key, self.model.revision)
            if found:
                revision = data.draw(st.sampled_from([revision, found[0]]))
            condition = data.draw(st.sampled_from(Condition))
            value = data.draw(VALUES) if condition is Condition.VALUE else b""
            end, time = data.draw(KEYS), self.model.time + data.draw(st.integers(0, 2))
            return Compare(key, condition, revision, value, end, time)

        def operation(key: bytes) -> Operation:
            kind = data.draw(st.sampled_from("pppdr"))
            if kind == "p":
                return Put(key, data.draw(VALUES), self.lease(data))
            if kind == "d":
                return Delete(key)
            return DeleteRange(key, data.draw(KEYS), data.draw(st.integers(1, 3)))

        some = st.lists(st.sampled_from(keys), max_size=3)
        transaction = Transaction(
            tuple(map(compare, data.draw(st.lists(st.sampled_from(keys), max_size=1)))),
            tuple(map(operation, data.draw(st.lists(st.sampled_from(keys), min_size=1)))),
            tuple(map(operation, data.draw(some))),
        )
        before = len(self.model.revisions)
        reply = self.apply(commands.encode_transaction(transaction))
        outcome, held = self.model.transact(self.index, transaction)
        changed = len(self.model.revisions) > before
        assert reply.outcome is outcome
        if outcome is MetastoreOutcome.DONE:
            found = replies.parse_outcome(reply)
            assert (found.succeeded, found.changed) == (held, changed)
            assert found.revision == self.model.revision

    @rule(puts=st.lists(st.tuples(KEYS, st.none() | VALUES), min_size=1, max_size=6))
    def change_keys(self, puts: list[tuple[bytes, bytes | None]]) -> None:
        for key, value in puts:
            change = Delete(key) if value is None else Put(key, value)
            transaction = Transaction((), (change,))
            self.apply(commands.encode_transaction(transaction))
            assert self.model.transact(self.index, transaction) == (MetastoreOutcome.DONE, True)

    @rule(ms=st.integers(-5, 5))
    def move_the_clock(self, ms: int) -> None:
        self.clock = max(0, self.clock + ms)

    @rule(ahead=st.integers(-2, 2**17))
    def reach_a_time(self, ahead: int) -> None:
        time = max(0, self.model.time + ahead)
        floor = max(self.model.time + 1, time)
        self.clock = max(self.clock, 0)
        for member in self.members:
            member.apply([(self.clock, commands.encode_time_reached(time))])
        self.model.time = max(floor, self.clock << 16)
        assert {member.state.time for member in self.members} == {self.model.time}

    @rule(data=st.data(), ahead=st.integers(-1, 1))
    def look_for_a_time(self, data: st.DataObject, ahead: int) -> None:
        times = [each.timestamp for each in self.model.revisions]
        time = max(0, data.draw(st.sampled_from([0, self.model.time, *times])) + ahead)
        known = [each.revision for each in self.model.revisions if each.timestamp <= time]
        for member in self.members:
            reply = member.ask(replies.encode_at_time(time))
            if time > self.model.time:
                assert reply.outcome is MetastoreOutcome.NOT_REACHED
            elif self.model.floor and max(known, default=0) <= self.model.floor:
                assert reply.outcome is MetastoreOutcome.COMPACTED
            else:
                assert reply.number == max(known, default=0)

    @rule(junk=st.binary(max_size=30))
    def propose_junk(self, junk: bytes) -> None:
        if junk[:1] not in {bytes((kind,)) for kind in commands.CommandKind}:
            assert self.apply(junk).outcome is MetastoreOutcome.INVALID

    @rule(ttl_ms=st.integers(1, 9))
    def grant(self, ttl_ms: int) -> None:
        (lease,) = replies.parse_leases(self.apply(commands.encode_grant(ttl_ms)))
        assert (lease.id, lease.ttl_ms, lease.generation) == (self.index, ttl_ms, 1)
        self.model.leases[lease.id] = ttl_ms, 1

    @rule(data=st.data())
    def keep(self, data: st.DataObject) -> None:
        lease = self.lease(data)
        reply = self.apply(commands.encode_keep(lease))
        if lease not in self.model.leases:
            assert reply.outcome is MetastoreOutcome.LEASE_NOT_FOUND
            return
        ttl_ms, generation = self.model.leases[lease]
        self.model.leases[lease] = ttl_ms, generation + 1
        assert replies.parse_leases(reply)[0].generation == generation + 1

    @rule(data=st.data(), generation=st.integers(0, 3))
    def end_lease(self, data: st.DataObject, generation: int) -> None:
        lease = self.lease(data)
        if generation:
            self.apply(commands.encode_expire(lease, generation))
        else:
            self.apply(commands.encode_revoke(lease))
        if lease in self.model.leases and generation in {0, self.model.leases[lease][1]}:
            self.model.end_lease(self.index, lease)

    def revision_back(self, back: int) -> int:
        return max(0, self.model.revision - back)

    @rule(back=BACK, purging=st.integers(0, 3), changes_max=st.integers(1, 4))
    def compact(self, back: int, purging: int, changes_max: int) -> None:
        """And members may purge a little or everything at once."""
        revision = self.revision_back(back)
        reply = self.apply(commands.encode_compact(revision))
        reached = revision <= self.model.revision
        assert (reply.outcome is MetastoreOutcome.DONE) == reached
        if reached:
            self.model.floor = max(self.model.floor, revision)
        if purging & 1:
            self.purge(0, changes_max)
        if purging & 2:
            self.purge_all(1)

    @rule(which=st.integers(0, 1), changes_max=st.integers(1, 4))
    def purge(self, which: int, changes_max: int) -> None:
        member = self.members[which]
        done = member.machine.purge(member.state, changes_max)
        assert done.examined <= changes_max

    @rule(which=st.integers(0, 1))
    def purge_all(self, which: int) -> None:
        member = self.members[which]
        while not member.machine.purge(member.state, 3).finished:
            pass
        self.check_what_is_retained(member)

    def check_what_is_retained(self, member: Member) -> None:
        """Exactly what can be seen above the floor."""
        floor = self.model.floor
        expected = set()
        for key, history in self.model.history.items():
            for (number, value, _), after in zip(history, [*history[1:], None], strict=True):
                seen = number > floor or (
                    value is not None and (after is None or after[0] > floor + 1)
                )
                if seen:
                    expected.add((key, number))
        found = set()
        for key in member.state.keys.rows:
            found |= {
                (key, number)
                for number, _, _ in self.model.history[key]
                if member.state.keys.following(key, number)
            }
        assert found == expected
        values = sum(1 for _, _, value in self.values(expected) if value is not None)
        assert len(member.machine.live_indexes(member.state)) <= values

    def values(self, chosen: set[tuple[bytes, int]]) -> list[tuple[bytes, int, bytes | None]]:
        return [
            (key, number, value)
            for key, history in self.model.history.items()
            for number, value, _ in history
            if (key, number) in chosen
        ]

    @rule(data=st.data(), which=st.integers(0, 1), again=st.booleans())
    def rewrite(self, data: st.DataObject, which: int, again: bool) -> None:
        leader = self.members[which]
        live = list(leader.machine.live_indexes(leader.state))
        if not live:
            return
        index = data.draw(st.sampled_from(live))
        command = leader.machine.rewrite_command(leader.state, index, leader.log[index])
        if command is None:
            return
        self.apply(command)
        if again:
            self.apply(command)

    @rule(data=st.data(), value=VALUES)
    def a_false_rewrite_changes_nothing(self, data: st.DataObject, value: bytes) -> None:
        if not self.model.revisions:
            return
        revision = data.draw(st.sampled_from(self.model.revisions))
        values = [(each.key, value, 0) for each in revision.changes]
        self.apply(commands.encode_rewrite(revision.revision, revision.revision, values))

    @rule(which=st.integers(0, 1))
    def trim(self, which: int) -> None:
        self.members[which].trim()

    @rule(which=st.integers(0, 1))
    def load(self, which: int) -> None:
        self.members[which].load()

    @rule(which=st.integers(0, 1))
    def install_from_the_other(self, which: int) -> None:
        member, other = self.members[which], self.members[1 - which]
        other.trim()
        member.state = member.machine.load(list(other.machine.save(other.state)))
        member.log, member.dead = dict(other.log), set(other.dead)

    @rule(start=KEYS, end=KEYS, back=BACK, rows_max=st.integers(0, 3))
    def read_a_range(self, start: bytes, end: bytes, back: int, rows_max: int) -> None:
        revision = self.revision_back(back)
        for member in self.members:
            self.check_range(member, start, end, revision, rows_max)

    def check_range(
        self, member: Member, start: bytes, end: bytes, revision: int, rows_max: int
    ) -> None:
        reply = member.ask(replies.encode_range(start, end, revision, rows_max))
        if revision > self.model.revision:
            assert reply.outcome is MetastoreOutcome.NOT_REACHED
            assert reply.number == self.model.revision
            return
        if revision and revision <= self.model.floor:
            assert reply.outcome is MetastoreOutcome.COMPACTED
            assert reply.number == self.model.floor
            return
        expected = self.model.rows(start, end, revision or self.model.revision)
        found: list[KeyValue] = []
        while True:
            page = replies.parse_rows(reply)
            assert page.rows.revision == (revision or self.model.revision)
            assert page.rows.timestamp == self.model.time
            assert not rows_max or len(page.rows.rows) <= rows_max
            found += page.rows.rows
            assert page.rows.more == bool(page.next_start)
            if not page.next_start:
                break
            reply = member.ask(replies.encode_range(page.next_start, end, revision, rows_max))
        assert found == expected

    @rule(start=KEYS, end=KEYS, back=BACK, revisions_max=st.integers(1, 3))
    def read_changes(self, start: bytes, end: bytes, back: int, revisions_max: int) -> None:
        after = self.revision_back(back)
        for member in self.members:
            self.check_changes(member, start, end, after, revisions_max)

    def check_changes(
        self, member: Member, start: bytes, end: bytes, after: int, revisions_max: int
    ) -> None:
        if after < self.model.floor:
            reply = member.ask(replies.encode_changes(start, end, after))
            assert reply.outcome is MetastoreOutcome.COMPACTED
            return
        expected = []
        for each in self.model.revisions:
            inside = tuple(
                change
                for change in each.changes
                if change.key >= start and (not end or change.key < end)
            )
            if each.revision > after and inside:
                expected.append(Revision(each.revision, each.timestamp, inside))
        found: list[Revision] = []
        while True:
            query = replies.encode_changes(start, end, after, revisions_max)
            page = replies.parse_changes(member.ask(query))
            assert len(page.revisions) <= revisions_max
            assert page.time == self.model.time
            found += page.revisions
            assert page.through >= after
            if page.through >= self.model.revision:
                break
            assert page.through > after
            after = page.through
        assert found == expected

    @rule(key=KEYS, back=BACK)
    def read_a_key(self, key: bytes, back: int) -> None:
        revision = self.revision_back(back)
        for member in self.members:
            reply = member.ask(replies.encode_get(key, revision))
            if revision > self.model.revision:
                assert reply.outcome is MetastoreOutcome.NOT_REACHED
            elif revision and revision <= self.model.floor:
                assert reply.outcome is MetastoreOutcome.COMPACTED
            else:
                expected = self.model.row(key, revision or self.model.revision)
                assert replies.parse_row(reply) == expected

    @invariant()
    def all_agree(self) -> None:
        for member in self.members:
            state = member.state
            assert state.revision == self.model.revision
            assert (state.floor, state.time) == (self.model.floor, self.model.time)
            leases = {each: (held.ttl_ms, held.generation) for each, held in state.leases.items()}
            assert leases == self.model.leases
            self.check_range(member, b"", b"", 0, 0)
            self.check_range(member, b"", b"", min(self.model.floor + 1, self.model.revision), 0)
            self.check_changes(member, b"", b"", self.model.floor, 100)
            assert set(member.machine.live_indexes(state)) <= member.log.keys()

    @invariant()
    def timestamps_ascend(self) -> None:
        times = [each.timestamp for each in self.model.revisions]
        assert times == sorted(set(times))


TestTwoMembers = TwoMembers.TestCase
TestTwoMembers.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
