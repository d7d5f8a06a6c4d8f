"""Members of a group as their clients see them."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from lithify.fs import MemoryFileSystem
from lithify.live_set import LiveSet
from lithify.raft.commands import CommandResult
from lithify.raft.core import (
    ConfChange,
    Config,
    DropReason,
    MemberStopped,
    ProposalDropped,
    ReadDropped,
    Role,
    Status,
)
from lithify.raft.core.messages import AppendRequest, Heartbeat, VoteRequest
from lithify.raft.core.ready import ReadState
from lithify.raft.errors import GroupAbsent, OutcomeUnknown
from lithify.raft.group.machine_queries import QUERY_COST, ROUND_COST
from lithify.raft.group.reads import Reads
from lithify.raft.group.removed_members import NEVER_LEFT, MemberRemoved, RemovedMembership
from lithify.raft.kv import format as kv
from lithify.raft.kv.format import KvOutcome, WatchEvent
from lithify.raft.machine import Checkpoint, ReleaseCursor, Timer
from lithify.raft.snapshots.messages import TransferMessage
from lithify.testing.faulty_fs import Fault, FaultyFileSystem
from tests.raft_members import Member, Members

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from lithify.raft.commands import Result
    from lithify.raft.core import RaftMessage
    from lithify.raft.machine import Effect, Meta


def test_a_group_of_one_answers_when_its_disk_has_it() -> None:
    members = Members("n1")
    members.elect("n1")
    results: list[Result] = []
    members["n1"].group.propose(kv.put(b"k", b"v"), results.append)
    members["n1"].group.work()
    assert not results
    members.settle()
    (answer,) = results
    assert isinstance(answer, CommandResult)
    assert members.get("n1", b"k") == b"v"


def test_many_reads_are_answered_in_rounds_so_that_others_have_their_turn() -> None:
    members = Members("n1")
    members.elect("n1")
    members.put("n1", b"k", b"v")
    group = members["n1"].group
    results: list[Result] = []
    for _ in range(1000):
        group.read(kv.get(b"k"), results.append)
    rounds = 0
    while group.work().again:
        rounds += 1
        assert len(results) == rounds * (ROUND_COST // (QUERY_COST + 1) + 1)
    assert rounds == 2
    assert len(results) == 1000
    assert all(isinstance(each, CommandResult) for each in results)


def test_followers_refuse_proposals_and_answer_reads() -> None:
    members = Members("n1", "n2", "n3")
    members.elect("n1")
    members.put("n1", b"k", b"v")
    refused = members.ask("n2", lambda done: members["n2"].group.propose(b"", done))
    assert isinstance(refused, ProposalDropped)
    assert (refused.reason, refused.leader) == (DropReason.NOT_LEADER, "n1")
    assert members.get("n2", b"k") == b"v"


def test_a_read_whose_request_was_lost_is_repeated() -> None:
    members = Members("n1", "n2", "n3")
    members.elect("n1")
    members.put("n1", b"k", b"v")
    results: list[Result] = []
    members.lose = lambda message: message.sender == "n2"
    members["n2"].group.read(kv.get(b"k"), results.append)
    members.settle()
    assert not results
    members.lose = lambda _: False
    members.tick(7)
    assert [type(result) for result in results] == [CommandResult]


def test_a_read_that_must_see_what_is_never_applied_is_dropped() -> None:
    """As on a follower whose disk is full."""
    for leader, reason in (("n1", DropReason.NOT_LEADER), ("", DropReason.BEHIND)):
        members = Members("n1", "n2", "n3")
        members.elect("n1")
        reads = Reads(0, 10)
        results: list[Result] = []
        reads.add(b"", results.append)
        reads.submit(members["n1"].group._core)
        reads.confirm([ReadState(1, 99)])
        for _ in range(19):
            reads.tick(leader)
        assert not results
        reads.tick(leader)
        (dropped,) = results
        assert isinstance(dropped, ReadDropped)
        assert (dropped.reason, dropped.leader) == (reason, leader)
        assert not list(reads.take_due(99))


def test_a_partitioned_leader_answers_no_read() -> None:
    members = Members("n1", "n2", "n3")
    members.elect("n1")
    members.put("n1", b"k", b"old")
    members.lose = lambda message: "n1" in (message.sender, message.to)
    results: list[Result] = []
    members["n1"].group.read(kv.get(b"k"), results.append)
    members.tick(3)
    assert not results
    members.tick(20)
    # It has found out that no member answers.
    assert isinstance(results[0], ReadDropped)


def test_a_local_query_is_answered_from_what_is_applied_whatever_others_do() -> None:
    members = Members("n1", "n2", "n3")
    members.elect("n1")
    members.put("n1", b"k", b"old")
    members.tick()
    members.lose = lambda message: "n3" in (message.sender, message.to)
    members.put("n1", b"k", b"new")
    for name, value in (("n1", b"new"), ("n3", b"old")):
        answer = members.ask(name, partial(members[name].group.query_local, kv.get(b"k")))
        assert isinstance(answer, CommandResult)
        assert answer.index == members[name].group.applied_index
        assert kv.parse_reply(answer.reply).value == value
    wrong = MemberStopped("its log is wrong")
    members["n3"].group.stop(wrong)
    assert members.ask("n3", partial(members["n3"].group.query_local, kv.get(b"k"))) is wrong


def test_a_run_of_commands_is_answered_together_and_in_its_order() -> None:
    members = Members("n1", "n2", "n3")
    members.elect("n1")
    told: list[tuple[slice, Any]] = []
    commands = [kv.put(b"a", b"1"), kv.compare_and_set(b"a", b"2", b"1"), b"nonsense", kv.get(b"a")]
    members["n1"].group.propose_many(commands, lambda *args: told.append(args))
    members.settle()
    ((stretch, result),) = told
    assert (stretch, result.index) == (slice(0, 4), members["n1"].group.applied_index - 3)
    outcomes = [kv.parse_reply(reply).outcome for reply in result.replies]
    assert outcomes == [KvOutcome.DONE, KvOutcome.DONE, KvOutcome.INVALID, KvOutcome.INVALID]
    assert members.get("n3", b"a") == b"2"


def test_a_batch_of_proposals_that_is_too_late_is_dropped_as_a_whole() -> None:
    members = Members("n1", "n2", "n3")
    members.elect("n1")
    told: list[tuple[slice, Any]] = []
    members["n2"].group.propose_many([kv.delete(b"a")] * 3, lambda *args: told.append(args))
    members.settle()
    ((stretch, result),) = told
    assert stretch == slice(0, 3)
    assert isinstance(result, ProposalDropped)


def test_effects_are_done_before_the_next_command_of_a_run() -> None:
    members = Members("n1")
    members.elect("n1")
    told: list[tuple[slice, Any]] = []
    commands = [kv.put(b"a", b"1"), kv.watch(b"", b"w", 0), kv.put(b"a", b"2"), kv.put(b"b", b"3")]
    members["n1"].group.propose_many(commands, lambda *args: told.append(args))
    members.settle()
    # The watch reads what it has missed before that is overwritten, and then each put is told.
    assert [(stretch.start, stretch.stop) for stretch, _ in told] == [(0, 2), (2, 3), (3, 4)]
    events = [kv.parse_event(send.data) for send in members["n1"].sends]
    assert [(event.key, event.value) for event in events] == [
        (b"a", b"1"),
        (b"a", b"2"),
        (b"b", b"3"),
    ]


def test_a_proposal_that_was_overwritten_was_never_done() -> None:
    members = Members("n1", "n2", "n3")
    members.elect("n1")
    members.put("n1", b"k", b"v")
    members.lose = lambda message: "n1" in (message.sender, message.to)
    results: list[Result] = []
    members["n1"].group.propose(kv.put(b"k", b"never"), results.append)
    leader = another_leader(members)
    members.put(leader, b"k", b"new")
    members.lose = lambda _: False
    members.tick(30)
    assert isinstance(results[0], ProposalDropped)
    assert members.get("n1", b"k") == b"new"


def another_leader(members: Members) -> str:
    """Let time pass until n2 or n3 leads; n1 is not heard."""
    leaders: list[str] = []
    while not leaders:
        members.tick()
        leaders = [name for name in ("n2", "n3") if members[name].group.leader == name]
    return leaders[0]


def test_the_first_entry_of_a_new_leader_decides_what_the_old_one_has_left() -> None:
    members = Members("n1", "n2", "n3")
    members.elect("n1")
    members.lose = lambda message: "n1" in (message.sender, message.to)
    results: list[Result] = []
    for number in range(5):
        members["n1"].group.propose(kv.put(b"k%d" % number, b"never"), results.append)
    another_leader(members)
    members.lose = lambda _: False
    # Nothing is proposed: the new leader's log is shorter than what the old one had.
    members.tick(4)
    assert [type(result) for result in results] == [ProposalDropped] * 5
    assert members.get("n1", b"k0") is None


def test_an_unseated_leader_without_contact_reports_an_unknown_outcome() -> None:
    members = Members("n1", "n2", "n3")
    members.elect("n1")
    members.lose = lambda message: "n1" in (message.sender, message.to)
    results: list[Result] = []
    members["n1"].group.propose(kv.put(b"k", b"?"), results.append)
    waited_ticks = 0
    while not results:
        waited_ticks += 1
        members.tick()
    assert isinstance(results[0], OutcomeUnknown)
    # It finds out within two election timeouts that no member receives it, and waits for three.
    assert waited_ticks <= 5 * 6 + 2
    members["n1"].group.propose(kv.put(b"k", b"!"), results.append)
    members.settle()
    assert isinstance(results[1], ProposalDropped)


def test_proposals_of_an_unseated_leader_committed_by_others_are_answered_as_done() -> None:
    members = Members("n1", "n2", "n3")
    members.elect("n1")
    # The others get the entry, and n1 hears nothing.
    members.lose = lambda message: message.to == "n1"
    results: list[Result] = []
    members["n1"].group.propose(kv.put(b"k", b"done"), results.append)
    members.settle()
    members.lose = lambda message: "n1" in (message.sender, message.to)
    another_leader(members)
    members.lose = lambda _: False
    members.tick(4)
    assert [type(result) for result in results] == [CommandResult]
    assert members.get("n2", b"k") == b"done"


def test_a_snapshot_that_passes_a_proposal_leaves_its_client_in_doubt() -> None:
    members = Members("n1", "n2", "n3")
    members.elect("n1")
    members.lose = lambda message: "n1" in (message.sender, message.to)
    results: list[Result] = []
    members["n1"].group.propose(kv.put(b"k", b"?"), results.append)
    members.tick(30)
    leader = next(name for name in ("n2", "n3") if members[name].group.leader == name)
    for number in range(5):
        members.put(leader, b"k%d" % number, b"v")
    members.snapshot(leader)
    members.lose = lambda _: False
    members.tick(40)
    assert isinstance(results[0], OutcomeUnknown)
    assert members.get("n1", b"k4") == b"v"


def test_values_stay_readable_through_snapshots_merges_and_power_cuts() -> None:
    members = Members("n1")
    members.elect("n1")
    for number in range(300):
        members.put("n1", b"key%d" % (number % 7), b"%d" % number)
    members.put("n1", b"rare", b"from the beginning")
    for number in range(200):
        members.put("n1", b"key%d" % (number % 7), b"%d" % number)
    members.snapshot("n1")
    members["n1"].group.compact()
    members.settle()
    before = members["n1"].group.overview()
    assert before["live_entries"] == 8
    assert before["merges"] == 1
    members.crash("n1")
    members.elect("n1")
    after = members["n1"].group.overview()
    assert after["snapshot_index"] == before["snapshot_index"]
    assert members.get("n1", b"rare") == b"from the beginning"
    assert members.get("n1", b"key3") == b"199"


def test_scattered_values_move_to_the_head_of_the_log() -> None:
    members = Members("n1", "n2", "n3")
    members.elect("n1")
    for number in range(120):
        members.put("n1", b"lasts%d" % number, b"v%d" % number)
        members.put("n1", b"changes", b"%d" % number)
    members.snapshot("n1")
    assert members["n1"].group.overview()["live_ranges"] > 100
    members["n1"].group.rewrite()
    members.tick(4)
    members.put("n1", b"lasts7", b"newer")
    members.snapshot("n1")
    assert members["n1"].group.overview()["live_ranges"] < 10
    assert members.get("n3", b"lasts99") == b"v99"
    assert members.get("n3", b"lasts7") == b"newer"


def test_snapshots_are_limited_by_entries_and_by_the_size_of_the_log() -> None:
    members = Members("n1", snapshot_entries=20)
    members.elect("n1")
    for number in range(100):
        members.put("n1", b"key%d" % number, b"")
        members.tick()
    # A row of the state is larger than a command with no value: half of the log has passed.
    assert 2 <= members["n1"].group.overview()["snapshots_taken"] <= 4


def test_commands_that_come_fast_make_a_quarter_of_the_snapshots() -> None:
    members = Members("n1", snapshot_entries=20)
    members.elect("n1")
    for number in range(200):
        members.put("n1", b"key", b"%d" % number)
    assert members["n1"].group.overview()["snapshots_taken"] == 3
    members.tick()
    assert members["n1"].group.overview()["snapshots_taken"] == 4


def test_a_failed_snapshot_is_retried_after_a_pause() -> None:
    members = Members("n1")
    members.elect("n1")
    members.put("n1", b"k", b"v")
    group = members["n1"].group
    group.take_snapshot()
    (job,) = members["n1"].proved_jobs()
    group.job_done(job, OSError(28, "no space left"))
    assert not group.work().jobs
    members.tick(49)
    assert group.overview()["snapshots_taken"] == 0
    members.tick(2)
    assert group.overview()["snapshots_taken"] == 1


def test_older_snapshots_are_removed_by_the_worker() -> None:
    """Not in the thread that all groups share: removing a large file takes time."""
    members = Members("n1")
    group = members.elect("n1")
    members.put("n1", b"key", b"1")
    members.snapshot("n1")
    members.put("n1", b"key", b"2")
    group.take_snapshot()
    (write,) = members["n1"].proved_jobs()
    group.job_done(write, write())
    jobs = group.work().jobs
    assert f"removal before {group.applied_index}" in [job.what for job in jobs]
    fs = members["n1"].fs
    assert len(fs.list("d/groups/g/snapshots")) == 2
    for job in jobs:
        group.job_done(job, job())
    assert len(fs.list("d/groups/g/snapshots")) == 1
    assert not group.work().jobs


def test_older_snapshots_that_could_not_be_removed_go_with_the_next_one() -> None:
    members = Members("n1")
    fs = FaultyFileSystem(MemoryFileSystem(clock=members.clock))
    members.all["n1"] = Member("n1", fs, members["n1"].settings)  # type: ignore[arg-type]
    group = members.elect("n1")
    fs.add(Fault("remove", "*/snapshots/*", kind="EIO"))
    for number in range(3):
        members.put("n1", b"key", b"%d" % number)
        members.snapshot("n1")
    assert group.overview()["snapshots_taken"] == 3
    assert len(fs.list("d/groups/g/snapshots")) == 1


def test_only_the_leader_sends_to_watchers() -> None:
    members = Members("n1", "n2", "n3")
    members.elect("n1")
    members.put("n1", b"k", b"before")
    members.command("n1", kv.watch(b"k", b"watcher", known=0))
    members.put("n1", b"k", b"after")
    events = [kv.parse_event(send.data) for send in members["n1"].sends]
    assert events == [WatchEvent(b"k", b"before", 2, 0), WatchEvent(b"k", b"after", 4, 2)]
    assert not members["n2"].sends
    members["n1"].group.transfer("n2")
    members.settle()
    members.put("n2", b"k", b"of the next leader")
    (send,) = members["n2"].sends
    assert kv.parse_event(send.data).previous == 4


class Counting:
    """Counts commands, and does what they say besides."""

    version = 3

    def init(self) -> int:
        return 0

    def apply(self, meta: Meta, command: bytes, state: int) -> tuple[int, bytes, Sequence[Effect]]:
        effects: list[Effect] = []
        if command == b"timer":
            effects.append(Timer(b"t", 3, b"rings"))
        elif command == b"checkpoint":
            effects.append(Checkpoint())
        elif command.startswith(b"release"):
            effects.append(ReleaseCursor(int(command[7:]) or meta.index))
        return state + 1, b"%d at %d" % (state + 1, meta.time_ms), effects

    def query(self, state: int, query: bytes) -> bytes:
        return b"%d" % state

    def live_indexes(self, state: int) -> LiveSet:
        return LiveSet.empty()

    def rewrite_command(self, state: int, index: int, command: bytes) -> bytes | None:
        return None

    def audience(self, state: int) -> Iterable[bytes]:
        return ()

    def farewell(self, name: bytes) -> bytes:
        raise AssertionError("no member is sent anything")

    def save(self, state: int) -> Iterable[bytes]:
        return [b"%d" % state]

    def load(self, pieces: Iterable[bytes]) -> int:
        return int(b"".join(pieces))


def counted(members: Members, name: str) -> int:
    result = members.ask(name, lambda done: members[name].group.read(b"", done))
    assert isinstance(result, CommandResult)
    return int(result.reply)


def propose(members: Members, name: str, command: bytes) -> bytes:
    result = members.ask(name, lambda done: members[name].group.propose(command, done))
    assert isinstance(result, CommandResult), result
    return result.reply


def test_a_timer_fires_once_per_group() -> None:
    members = Members("n1", "n2", "n3", machine=Counting)
    members.elect("n1")
    propose(members, "n1", b"timer")
    members.tick(2)
    assert counted(members, "n1") == 1
    members.tick(10)
    assert [counted(members, name) for name in ("n1", "n2", "n3")] == [2, 2, 2]


def test_all_members_see_the_clock_of_the_leader() -> None:
    members = Members("n1", machine=Counting)
    members.elect("n1")
    members.clock.advance(5)
    assert propose(members, "n1", b"x") == b"1 at %d" % members.clock.now_ms()


def test_a_checkpoint_becomes_a_snapshot_when_its_index_is_released() -> None:
    members = Members("n1", machine=Counting)
    members.elect("n1")
    for _ in range(5):
        propose(members, "n1", b"x")
    propose(members, "n1", b"checkpoint")
    for _ in range(5):
        propose(members, "n1", b"x")
    group = members["n1"].group
    assert group.overview()["snapshot_index"] == 0
    propose(members, "n1", b"release3")
    assert group.overview()["snapshot_index"] == 0
    propose(members, "n1", b"release9")
    assert group.overview()["snapshot_index"] == 7
    propose(members, "n1", b"release0")
    assert group.overview()["snapshot_index"] == 15
    members.crash("n1")
    members.elect("n1")
    assert counted(members, "n1") == 14


def test_members_come_and_go() -> None:
    members = Members("n1", joining=["n2", "n3"])
    members.elect("n1")
    members.put("n1", b"k", b"v")
    result = members.change("n1", "+n2,+n3")
    assert isinstance(result, ProposalDropped)
    assert result.reason is DropReason.LEARNER_FIRST
    members.tick(3)
    assert members["n1"].group.overview()["members"] == "voters n1, learners n2 n3"
    assert isinstance(members.change("n1", "+n2,+n3"), CommandResult)
    assert isinstance(members.change("n1", "-n2"), CommandResult)
    members.put("n1", b"k", b"w")
    assert members.get("n3", b"k") == b"w"
    members.crash("n3")
    members.tick(3)
    assert members.get("n3", b"k") == b"w"
    assert members["n3"].group.overview()["members"] == "voters n1 n3"


def test_a_change_is_not_judged_by_members_that_may_never_be_in_force() -> None:
    members = Members("n1", "n2", "n3")
    members.elect("n1")
    members.lose = lambda message: "n1" in (message.sender, message.to)
    results: list[Result] = []
    for _ in range(2):
        members["n1"].group.propose_change(ConfChange.parse("-n3"), results.append)
        members.settle()
    # Not that it would change nothing: the first one is about to be overwritten.
    (second,) = results
    assert isinstance(second, ProposalDropped)
    assert second.reason is DropReason.CHANGE_IN_FLIGHT
    leader = another_leader(members)
    members.lose = lambda _: False
    members.tick(30)
    assert members[leader].group.overview()["members"] == "voters n1 n2 n3"


def test_heartbeats_and_appends_need_no_transfer() -> None:
    members = Members("n1", "n2", "n3")
    members.elect("n1")
    for number in range(50):
        members.put("n1", b"k", b"%d" % number)
    members.tick(5)
    kinds: set[type[RaftMessage]] = {type(message) for message in members.told}
    assert {AppendRequest, Heartbeat} <= kinds
    assert not any(issubclass(kind, TransferMessage) for kind in kinds)


def test_nothing_is_applied_behind_the_end_of_a_group() -> None:
    members = Members("n1", "n2", "n3")
    group = members.elect("n1")
    results: list[Result] = []
    group.propose(kv.put(b"k", b"before"), results.append)
    group.propose_end(results.append)
    members.settle()
    assert [type(result) for result in results] == [CommandResult, CommandResult]
    group.propose(kv.put(b"k", b"behind"), results.append)
    members.tick(3)
    assert all(members[name].group.ended for name in ("n1", "n2", "n3"))
    assert len(results) == 2
    group.close(GroupAbsent("g", "n1"))
    assert isinstance(results[2], GroupAbsent)
    assert group.state.rows.get(b"k") is not None
    # It is the node that tells of it, when it has struck the group off.
    assert not any(isinstance(message, MemberRemoved) for message in members.told)


def test_a_removed_member_is_notified_and_accepts_it() -> None:
    members = Members("n1", "n2", "n3")
    group = members.elect("n1")
    members.put("n1", b"k", b"v")
    third = members["n3"].group
    assert group.removal_notice("n3") is None
    members.change("n1", "-n3")
    (word,) = [message for message in members.told if isinstance(message, MemberRemoved)]
    assert (word.to, word.ended) == ("n3", False)
    assert third.believes(word)
    # One that lags says nothing, nor does one that leads and has committed nothing yet.
    assert members["n2"].group.removal_notice("n3") is None
    # A member that knows a later term, or has entries of this one above that index, stays.
    assert not third.believes(replace(word, term=word.term - 1))
    assert not third.believes(replace(word, index=third.status().last_index - 1))
    assert third.believes(replace(word, term=0, index=0, ended=True))


def test_a_removed_member_does_not_vote_for_a_candidate_with_a_shorter_log() -> None:
    left = NEVER_LEFT.again(status_at(term=4, last_term=3, last_index=271))
    assert left == RemovedMembership(1, 4, 3, 271)
    assert left.hears(VoteRequest("n2", "n1", 5, 271, 3))
    assert not left.hears(VoteRequest("n2", "n1", 5, 270, 3))
    assert not left.hears(VoteRequest("n2", "n1", 5, 500, 2))
    assert left.hears(VoteRequest("n2", "n1", 5, 3, 4))
    # What it had the first time counts the second time too.
    assert left.again(status_at(term=6, last_term=0, last_index=0)) == RemovedMembership(
        2, 6, 3, 271
    )


def status_at(term: int, last_term: int, last_index: int) -> Status:
    config = Config(frozenset({"n1", "n2", "n3"}))
    return Status("n1", Role.FOLLOWER, term, "", "", last_index, last_term, 0, 0, 0, config, 0, {})
