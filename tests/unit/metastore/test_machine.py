"""The metastore's machine by itself: what it decides, refuses, and keeps in the log."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from lithify.errors import InvalidInput
from lithify.hybrid_time import timestamp
from lithify.metastore import command_format as commands
from lithify.metastore import machine
from lithify.metastore import query_format as replies
from lithify.metastore.errors import (
    LeaseFull,
    LeaseNotFound,
    RevisionCompacted,
    RevisionNotReached,
)
from lithify.metastore.machine import CLOCK_MS_MAX, MetastoreMachine
from lithify.metastore.metastore import Outcome
from lithify.metastore.query_format import MetastoreOutcome
from lithify.metastore.transaction import (
    LEASE_KEYS_MAX,
    Compare,
    Condition,
    Delete,
    DeleteRange,
    Put,
    Transaction,
)
from lithify.raft.machine import CommandBatch, ManyMachine
from tests.unit.metastore.store import Store

if TYPE_CHECKING:
    from lithify.metastore.state import MetastoreState
    from lithify.raft.machine import Machine


@pytest.mark.parametrize(
    ("compare", "held"),
    [
        (Compare(b"there", Condition.ABSENT), False),
        (Compare(b"there", Condition.PRESENT), True),
        (Compare(b"there", Condition.REVISION, 1), True),
        (Compare(b"there", Condition.REVISION, 2), False),
        (Compare(b"there", Condition.REVISION_AT_MOST, 1), True),
        (Compare(b"there", Condition.REVISION_AT_MOST, 0), False),
        (Compare(b"there", Condition.VALUE, value=b"value"), True),
        (Compare(b"there", Condition.VALUE, value=b"other"), False),
        (Compare(b"gone", Condition.ABSENT), True),
        (Compare(b"gone", Condition.PRESENT), False),
        (Compare(b"gone", Condition.REVISION, 0), True),
        (Compare(b"gone", Condition.REVISION, 3), False),
        (Compare(b"gone", Condition.REVISION_AT_MOST, 0), True),
        (Compare(b"gone", Condition.VALUE, value=b""), False),
        (Compare(b"never", Condition.ABSENT), True),
        (Compare(b"never", Condition.VALUE, value=b""), False),
        (Compare(b"a", Condition.RANGE_UNCHANGED, 1, end=b"gone"), True),
        (Compare(b"a", Condition.RANGE_UNCHANGED, 1, end=b"gone1"), False),
        (Compare(b"a", Condition.RANGE_UNCHANGED, 3), True),
        (Compare(b"gonf", Condition.RANGE_UNCHANGED, 0), False),
        (Compare(b"u", Condition.RANGE_UNCHANGED, 0), True),
        (Compare(b"", Condition.TIME_BELOW, time=4), False),
        (Compare(b"", Condition.TIME_BELOW, time=5), True),
    ],
)
def test_a_compare_holds_or_not(compare: Compare, held: bool) -> None:
    store = Store()
    store.put(b"there", b"value")
    store.put(b"gone", b"")
    store.delete(b"gone")
    outcome = store.transact(Transaction((compare,), (Put(b"1", b""),), (Put(b"2", b""),)))
    assert outcome.succeeded == held
    assert store.get(b"1" if held else b"2") is not None
    assert store.get(b"2" if held else b"1") is None


def test_below_the_floor_it_is_not_known_what_was_unchanged() -> None:
    store = Store()
    store.put(b"a", b"")
    store.put(b"b", b"")
    store.compact(2)
    unchanged = Compare(b"x", Condition.RANGE_UNCHANGED, 1)
    assert not store.transact(Transaction((unchanged,))).succeeded
    unchanged = Compare(b"x", Condition.RANGE_UNCHANGED, 2)
    assert store.transact(Transaction((unchanged,))).succeeded


def test_a_reader_at_a_time_gets_the_newest_revision_up_to_it() -> None:
    store = Store()
    times = []
    for store.time_ms in (10, 20, 30):
        times.append(store.transact(Transaction((), (Put(b"a", b"%d" % store.time_ms),))).timestamp)
    numbers = [store.ask(replies.encode_at_time(time)).number for time in times]
    assert numbers == [1, 2, 3]
    assert store.ask(replies.encode_at_time(times[1] - 1)).number == 1
    assert store.ask(replies.encode_at_time(times[0] - 1)).number == 0
    late = store.ask(replies.encode_at_time(times[2] + 1))
    assert (late.outcome, late.number) == (MetastoreOutcome.NOT_REACHED, times[2])
    store.do(commands.encode_time_reached(times[2] + 1))
    assert store.ask(replies.encode_at_time(times[2] + 1)).number == 3
    assert store.transact(Transaction((), (Put(b"a", b""),))).timestamp == times[2] + 2
    store.compact(1)
    assert store.ask(replies.encode_at_time(times[0])).outcome is MetastoreOutcome.COMPACTED
    assert store.ask(replies.encode_at_time(times[1])).number == 2


def test_a_time_cannot_be_moved_beyond_the_latest_clock() -> None:
    store = Store()
    store.do(commands.encode_time_reached(2**63 - 1))
    assert store.state.time == timestamp(CLOCK_MS_MAX)


def test_all_compares_must_hold() -> None:
    store = Store()
    compares = Compare(b"a", Condition.ABSENT), Compare(b"a", Condition.PRESENT)
    outcome = store.transact(Transaction(compares, (Put(b"a", b""),)))
    assert (outcome.succeeded, outcome.changed, outcome.revision) == (False, False, 0)


def test_operations_on_one_key_make_one_change() -> None:
    store = Store()
    store.run(Put(b"a", b"1"), Delete(b"a"), Put(b"a", b"2"), Put(b"b", b""), Delete(b"b"))
    (revision,) = (each.changes for each in store.changes(0).revisions)
    assert [(change.key, change.value) for change in revision] == [(b"a", b"2")]
    store.run(Delete(b"a"), Put(b"a", b"3"))
    assert store.changes(1).revisions[0].changes[0].value == b"3"
    found = store.get(b"a")
    assert found is not None
    assert found.revision == 2


def test_a_transaction_that_changes_nothing_makes_no_revision() -> None:
    store = Store()
    store.put(b"a", b"")
    before = store.state.time
    outcome = store.transact(Transaction((), (Delete(b"no"), DeleteRange(b"x", b"y"))))
    assert outcome == Outcome(True, 1, before + 1, changed=False)
    assert store.transact(Transaction()).revision == 1
    assert store.run(Put(b"new", b""), Delete(b"new")) == 1
    assert store.changes(1).revisions == ()


def test_a_range_is_deleted_up_to_the_maximum_of_keys() -> None:
    store = Store()
    store.run(*(Put(b"%d" % number, b"") for number in range(10)))
    store.run(DeleteRange(b"2", b"8", 3))
    assert store.keys() == [b"0", b"1", b"5", b"6", b"7", b"8", b"9"]
    store.run(DeleteRange(b"2", b"8", 3))
    store.run(DeleteRange(b"8", b"", 3))
    assert store.keys() == [b"0", b"1"]


def test_a_range_sees_the_operations_before_it() -> None:
    store = Store()
    store.run(Put(b"b", b""), Put(b"c", b""), Put(b"d", b""))
    store.run(Delete(b"b"), Put(b"a", b""), DeleteRange(b"a", b"", 2))
    assert store.keys() == [b"d"]


def test_timestamps_ascend_whatever_the_clock_does() -> None:
    store = Store()
    times = []
    for time_ms in (100, 100, 50, 101, 0):
        store.time_ms = time_ms
        store.put(b"a", b"")
        times.append(store.state.time)
    first = timestamp(100)
    assert times == [first, first + 1, first + 2, timestamp(101), timestamp(101) + 1]
    assert [each.timestamp for each in store.changes(0).revisions] == times


def test_a_clock_of_the_far_future_leaves_timestamps_for_all_that_follow() -> None:
    store = Store()
    store.time_ms = 2**64 - 1
    store.put(b"a", b"")
    assert store.state.time == timestamp(CLOCK_MS_MAX)
    store.put(b"a", b"")
    assert store.state.time == timestamp(CLOCK_MS_MAX) + 1
    loaded = store.machine.load(list(store.machine.save(store.state)))
    assert loaded.time == store.state.time


def test_each_command_that_can_be_parsed_advances_the_time() -> None:
    store = Store()
    sent = [
        commands.encode_time(),
        commands.encode_grant(5),
        commands.encode_keep(99),
        commands.encode_revoke(99),
        commands.encode_expire(99, 1),
        commands.encode_compact(0),
        commands.encode_rewrite(1, 1, [(b"a", b"", 0)]),
        commands.encode_transaction(Transaction()),
    ]
    assert [store.do(command).time for command in sent] == list(range(1, len(sent) + 1))
    assert store.state.revision == 0


@pytest.mark.parametrize(
    "command",
    [
        b"",
        b"\0",
        b"\xff",
        commands.encode_time() + b"x",
        commands.encode_grant(5) + b"x",
        commands.encode_grant(5)[:-1],
        commands.KIND_AND_NUMBER.pack(commands.CommandKind.GRANT, 0),
        commands.KIND_AND_NUMBER.pack(commands.CommandKind.GRANT, 2**41),
        commands.encode_keep(5)[:-1],
        commands.encode_revoke(5) + b"x",
        commands.encode_expire(5, 1)[:-1],
        commands.encode_compact(5) + b"x",
        commands.encode_rewrite(1, 1, [(b"a", b"", 0)]) + b"x",
        commands.encode_transaction(Transaction((), (Put(b"a", b""),))) + b"x",
    ],
)
def test_a_command_that_cannot_be_parsed_changes_nothing(command: bytes) -> None:
    store = Store()
    assert store.do(command).outcome is MetastoreOutcome.INVALID
    assert (store.state.time, store.state.revision, store.state.leases) == (0, 0, {})


def test_a_run_of_commands_is_applied_from_where_it_is_to_start() -> None:
    store = Store()
    put = commands.encode_transaction(Transaction((), (Put(b"a", b""),)))
    batch = CommandBatch(5, 1, [1, 2, 3], [put, b"junk", put])
    _, found, _ = store.machine.apply_many(batch, 1, store.state)
    outcomes = [replies.parse_reply(each) for each in found]
    assert [each.outcome.name for each in outcomes] == ["INVALID", "DONE"]
    assert outcomes[1].number == store.state.revision == 7


# --- leases ---------------------------------------------------------------------------------


def granted(store: Store, ttl_ms: int = 1000) -> int:
    (lease,) = replies.parse_leases(store.do(commands.encode_grant(ttl_ms)))
    return lease.id


def test_a_lease_that_ends_deletes_its_keys_in_one_revision() -> None:
    store = Store()
    lease = granted(store)
    store.run(Put(b"b", b"", lease), Put(b"a", b"", lease), Put(b"c", b""))
    revision = store.do(commands.encode_revoke(lease)).number
    (found,) = store.changes(revision - 1).revisions
    assert [(change.key, change.value) for change in found.changes] == [(b"a", None), (b"b", None)]
    assert store.keys() == [b"c"]
    assert store.state.leases == {}


def test_a_lease_without_keys_ends_without_a_revision() -> None:
    store = Store()
    reply = store.do(commands.encode_revoke(granted(store)))
    assert (reply.flags, reply.number) == (replies.HELD, 0)
    assert store.do(commands.encode_revoke(77)).flags == 0


def test_a_key_leaves_its_lease_by_any_change() -> None:
    store = Store()
    first, second = granted(store), granted(store)
    store.run(*(Put(key, b"", first) for key in (b"moved", b"freed", b"gone", b"kept")))
    store.run(Put(b"moved", b"", second), Put(b"freed", b""), Delete(b"gone"))
    store.put(b"gone", b"again")
    store.do(commands.encode_revoke(first))
    assert store.keys() == [b"freed", b"gone", b"moved"]
    found = store.get(b"moved")
    assert found is not None
    assert found.lease == second
    store.do(commands.encode_revoke(second))
    assert store.keys() == [b"freed", b"gone"]


def test_a_kept_lease_does_not_expire_by_its_old_generation() -> None:
    store = Store()
    lease = granted(store)
    store.put(b"a", b"", lease)
    (kept,) = replies.parse_leases(store.do(commands.encode_keep(lease)))
    assert (kept.ttl_ms, kept.generation) == (1000, 2)
    assert store.do(commands.encode_expire(lease, 1)).flags == 0
    assert store.keys() == [b"a"]
    assert store.do(commands.encode_expire(lease, 2)).flags == replies.HELD | replies.CHANGED
    assert store.keys() == []
    with pytest.raises(LeaseNotFound):
        replies.check_reply(store.do(commands.encode_keep(lease)))


def test_a_put_with_a_lease_that_has_ended_refuses_the_whole_transaction() -> None:
    store = Store()
    with pytest.raises(LeaseNotFound, match="lease 9 "):
        store.run(Put(b"a", b""), Put(b"b", b"", 9))
    with pytest.raises(LeaseNotFound):
        store.run(Put(b"b", b"", 2**64 - 1))
    assert store.keys() == []


def test_a_lease_has_a_maximum_of_keys() -> None:
    store = Store()
    lease = granted(store)
    for at in range(0, LEASE_KEYS_MAX, 1024):
        store.run(*(Put(b"%d" % number, b"", lease) for number in range(at, at + 1024)))
    store.put(b"7", b"again", lease)
    with pytest.raises(LeaseFull, match=f"lease {lease} has 4096 keys"):
        store.put(b"new", b"", lease)
    assert store.get(b"new") is None


# --- floor, purge, rewriting ----------------------------------------------------------------


def test_the_floor_only_rises_and_not_above_the_newest_revision() -> None:
    store = Store()
    for _ in range(5):
        store.put(b"a", b"")
    store.compact(3)
    store.compact(2)
    assert store.state.floor == 3
    with pytest.raises(RevisionNotReached, match="newest one is 5"):
        store.compact(6)


def test_reads_below_the_floor_are_refused_whether_they_were_purged_or_not() -> None:
    store = Store()
    for number in range(5):
        store.put(b"a", b"%d" % number)
    store.compact(3)
    for _ in range(2):
        for revision in (1, 3):
            with pytest.raises(RevisionCompacted, match="above 3"):
                store.get(b"a", revision)
            with pytest.raises(RevisionCompacted):
                store.range(revision=revision)
        with pytest.raises(RevisionCompacted):
            store.changes(2)
        assert [each.revision for each in store.changes(3).revisions] == [4, 5]
        found = store.get(b"a", 4)
        assert found is not None
        assert found.value == b"3"
        store.purge()


def test_a_moved_entry_keeps_revision_time_and_values_and_can_be_moved_again() -> None:
    store = Store()
    revision = store.run(Put(b"a", b"1"), Put(b"b", b"2"), Delete(b"c"))
    before = store.range(), store.changes(0).revisions
    for place in (revision, 2, 3):
        assert store.rewrite(place)
        assert store.live == [place + 1]
        assert store.range().rows.rows == before[0].rows.rows
        assert store.changes(0).revisions == before[1]
    assert store.machine.rewrite_command(store.state, 3, store.log[4]) is None


def test_an_entry_of_the_second_branch_can_be_moved() -> None:
    store = Store()
    compare = Compare(b"a", Condition.PRESENT)
    store.transact(Transaction((compare,), (Put(b"a", b"1"),), (Put(b"a", b"2"),)))
    for place in (1, 2):
        found = store.get(b"a")
        assert found is not None
        assert found.value == b"2"
        assert store.rewrite(place)


def test_an_entry_is_moved_without_the_values_that_are_gone() -> None:
    store = Store()
    store.run(Put(b"a", b"1"), Put(b"b", b"2"))
    store.put(b"a", b"3")
    store.compact(2)
    store.purge()
    assert store.rewrite(1)
    assert commands.parse_rewrite(store.log[4])[2] == [(commands.PUT, b"b", b"2", 0)]
    found = store.get(b"b")
    assert found is not None
    assert (found.value, found.revision, found.timestamp) == (b"2", 1, 1)


@pytest.mark.parametrize("floor", [1, 2])
def test_a_member_that_has_not_purged_follows_the_move_of_one_that_has(floor: int) -> None:
    leader, follower = Store(), Store()
    for store in (leader, follower):
        store.run(Put(b"a", b"1"), Put(b"b", b"2"))
        store.put(b"a", b"3")
        store.compact(floor)
    leader.purge()
    command = leader.machine.rewrite_command(leader.state, 1, leader.log[1])
    assert command is not None
    assert leader.do(command) == follower.do(command)
    assert leader.live == follower.live == [2, 4]
    follower.trim()
    assert follower.range() == leader.range()
    follower.purge()
    assert follower.state.keys.rows == leader.state.keys.rows


def test_entries_that_wait_for_the_purge_are_not_moved() -> None:
    store = Store()
    store.put(b"a", b"1")
    store.put(b"a", b"2")
    store.compact(2)
    assert not store.rewrite(1)
    store.purge()
    assert store.live == [2]


@pytest.mark.parametrize(
    ("place", "values"),
    [
        (1, [(b"a", b"other", 0), (b"b", b"2", 0)]),
        (1, [(b"a", b"1", 0)]),
        (1, []),
        (2, [(b"a", b"1", 0), (b"b", b"2", 0)]),
    ],
)
def test_a_false_rewrite_changes_nothing(
    place: int, values: list[tuple[bytes, bytes, int]]
) -> None:
    store = Store()
    store.run(Put(b"a", b"1"), Put(b"b", b"2"))
    assert store.do(commands.encode_rewrite(place, 1, values)).flags == 0
    assert store.live == [1]


def test_deletions_and_what_changed_nothing_are_not_live() -> None:
    store = Store()
    store.put(b"a", b"")
    store.delete(b"a")
    store.do(commands.encode_time())
    store.do(b"junk")
    assert store.live == [1]
    store.compact(2)
    store.purge()
    assert store.live == []
    assert store.state.keys.rows == {}


def test_a_query_that_cannot_be_parsed_is_invalid() -> None:
    store = Store()
    whole = [
        replies.encode_get(b"key"),
        replies.encode_range(b"a", b"b"),
        replies.encode_changes(b"a", b"b", 0),
        replies.encode_leases(),
        replies.encode_status(),
    ]
    for query in (b"", b"\x7f", *(each + b"x" for each in whole), *(each[:-1] for each in whole)):
        assert store.ask(query).outcome is MetastoreOutcome.INVALID
    with pytest.raises(InvalidInput, match="cannot parse"):
        replies.check_reply(store.ask(b""))


def test_a_group_can_run_it() -> None:
    machine: Machine[MetastoreState] = MetastoreMachine()
    assert isinstance(machine, ManyMachine)
    assert machine.version == 1


def test_nothing_is_sent_to_clients() -> None:
    store = Store()
    assert list(store.machine.audience(store.state)) == []
    assert store.do(store.machine.farewell(b"client")).outcome is MetastoreOutcome.DONE


def test_the_floor_rises_only_if_guarding_keys_are_unchanged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = Store()
    store.put(b"hold/x", b"")
    seen = store.put(b"a", b"1")
    first, second = store.put(b"a", b"2"), store.put(b"holds", b"no prefix")

    def compact(revision: int, since: int) -> tuple[bool, int]:
        reply = store.do(commands.encode_compact_if_unchanged(revision, b"hold/", since))
        replies.check_reply(reply, revision)
        return bool(reply.flags & replies.HELD), store.state.floor

    assert compact(seen, seen) == (True, seen)
    store.put(b"hold/x", b"again")
    assert compact(first, seen) == (False, seen)
    store.delete(b"hold/x")
    assert compact(first, seen) == (True, first), "a hold that has gone holds nothing"
    with pytest.raises(RevisionNotReached):
        compact(store.state.revision + 1, seen)
    monkeypatch.setattr(machine, "GUARDS_MAX", 1)
    store.put(b"hold/1", b"")
    since = store.put(b"hold/2", b"")
    assert compact(second, since) == (False, first), "too many to check"


def test_a_guarded_compaction_that_cannot_be_parsed_changes_nothing() -> None:
    store = Store()
    store.put(b"a", b"1")
    whole = commands.encode_compact_if_unchanged(1, b"", 1)
    for command in (whole[:-1], whole + bytes(4097)):
        assert store.do(command).outcome is replies.MetastoreOutcome.INVALID
    assert store.state.floor == 0
