"""The core, driven by hand: what no network would send, and what a driver relies on."""

from __future__ import annotations

import pickle

import pytest

from lithify.errors import InvalidInput, ProtocolError
from lithify.raft.core import (
    AppendReply,
    AppendRequest,
    Commit,
    ConfChange,
    Config,
    CoreSettings,
    Diverged,
    Dropped,
    DropReason,
    EntryKind,
    Heartbeat,
    InstallSnapshot,
    LogTooShort,
    MemoryStorage,
    ProposalDropped,
    RaftCore,
    Ready,
    Role,
    SnapshotMeta,
    StorageAppend,
    StorageAppended,
    TimeoutNow,
    VoteReply,
    VoteRequest,
)
from lithify.raft.core.values import HardState
from lithify.raft.entry import Entry
from lithify.raft.errors import EntryUnreadable

THREE = Config(frozenset(("n1", "n2", "n3")))


def member(config: Config = THREE, *terms: int) -> tuple[RaftCore, MemoryStorage]:
    storage = MemoryStorage(config)
    entries = [Entry(index, term, b"old") for index, term in enumerate(terms, 1)]
    storage.write(StorageAppend(0, entries, HardState(max(terms, default=0)), None))
    return RaftCore(CoreSettings("n1", lambda _: 0), storage), storage


def work(core: RaftCore, storage: MemoryStorage) -> Ready:
    """Do at once what the core wants done; what it has to send then."""
    ready = core.ready()
    if ready.append is not None:
        storage.write(ready.append)
    core.advance(ready)
    return ready


def leader() -> tuple[RaftCore, MemoryStorage]:
    core, storage = member(Config(frozenset(("n1",))))
    core.campaign()
    for _ in range(3):
        work(core, storage)
    return core, storage


def test_proposals_get_indexes_in_a_row_and_come_out_in_order() -> None:
    core, storage = leader()
    assert core.propose(b"a") == 2
    assert core.propose_many([b"b", b"c"]) == range(3, 5)
    applied = [entry for _ in range(3) for entry in work(core, storage).apply]
    assert [(entry.index, entry.payload) for entry in applied] == [(2, b"a"), (3, b"b"), (4, b"c")]


def test_a_ready_without_work_is_empty() -> None:
    core, storage = leader()
    ready = work(core, storage)
    assert (ready.append, ready.messages, ready.apply) == (None, [], [])
    assert (ready.role, ready.leader, ready.commit) == (Role.LEADER, "n1", 1)


def test_a_request_proves_nothing_behind_its_entries() -> None:
    # The follower's entries 2 and 3 are of a leader that is gone. The new one has committed others
    # at these places, and this message does not reach that far.
    core, storage = member(THREE, 1, 1, 1)
    core.step(AppendRequest("n2", "n1", 2, 1, 1, [], commit=3))
    assert work(core, storage).commit == 1


def test_a_commit_without_entries_counts_if_its_entry_is_of_the_same_leader() -> None:
    core, storage = member(THREE, 1, 1)
    for index in (2, 3):
        # Entry 2 is of an earlier leader, so it may be another one there; entry 3 is not here.
        core.step(Commit("n2", "n1", 2, index))
        assert work(core, storage).commit == 0
    core.step(AppendRequest("n2", "n1", 2, 2, 1, [Entry(3, 2, b"new")], commit=0))
    for _ in range(3):
        work(core, storage)
    core.step(Commit("n2", "n1", 2, 3))
    ready = work(core, storage)
    assert (ready.commit, ready.leader, ready.messages) == (3, "n2", [])


def test_a_commit_of_an_earlier_term_gets_the_present_one() -> None:
    core, storage = member(THREE, 1, 3)
    core.step(Commit("n2", "n1", 1, 1))
    ready = work(core, storage)
    assert ready.commit == 0
    assert ready.messages == [AppendReply("n1", "n2", 3, 0)]


def test_a_committed_entry_is_never_overwritten() -> None:
    core, _ = member(THREE, 1, 1)
    core.step(AppendRequest("n2", "n1", 2, 2, 1, [], commit=2))
    other = Entry(1, 2, b"new")
    for request in (
        AppendRequest("n2", "n1", 2, 0, 0, [other], commit=2),
        AppendRequest("n2", "n1", 2, 1, 2, [], commit=2),
        InstallSnapshot("n2", "n1", 2, SnapshotMeta(2, 2, THREE)),
    ):
        with pytest.raises(Diverged, match=r"committed entry . of n1 has term 1, that of"):
            core.step(request)
    assert core.status().last_term == 1
    # The same entries once more are no divergence, nor is what a snapshot has passed.
    core.step(AppendRequest("n2", "n1", 2, 0, 0, [Entry(1, 1, b"")], commit=2))
    core.step(InstallSnapshot("n2", "n1", 2, SnapshotMeta(2, 1, THREE)))


def test_a_member_that_may_not_vote_neither_grants_nor_campaigns() -> None:
    storage = MemoryStorage(THREE)
    core = RaftCore(CoreSettings("n1", lambda _: 0, may_vote=lambda _: False), storage)
    for message in (
        VoteRequest("n2", "n1", 1, 9, 1, pre=True),
        VoteRequest("n2", "n1", 1, 9, 1),
        VoteRequest("n2", "n1", 1, 9, 1, forced=True),
        TimeoutNow("n2", "n1", 1),
    ):
        core.step(message)
    core.campaign()
    for _ in range(50):
        core.tick()
    assert core.status().role is Role.FOLLOWER
    assert not core.ready().messages


def test_a_member_that_lost_entries_reports_it() -> None:
    core, _ = member(THREE, 1, 1)
    with pytest.raises(LogTooShort, match="n1 acknowledged entries up to 7"):
        core.step(Heartbeat("n2", "n1", 2, commit=7, round=0))


def test_a_message_to_another_member_is_refused() -> None:
    core, _ = member()
    with pytest.raises(InvalidInput, match="message to n2 was delivered to n1"):
        core.step(Heartbeat("n3", "n2", 1, commit=0, round=0))


def test_answers_of_non_members_and_of_other_terms_are_ignored() -> None:
    core, storage = member()
    core.campaign()
    work(core, storage)
    core.step(VoteReply("n2", "n1", 5, granted=True, pre=True))
    assert core.status().role is Role.PRE_CANDIDATE
    core.step(VoteReply("n9", "n1", 1, granted=True, pre=True))
    assert core.status().role is Role.PRE_CANDIDATE
    core.step(VoteReply("n2", "n1", 1, granted=True, pre=True))
    assert core.status().role is Role.CANDIDATE
    work(core, storage)
    core.step(VoteReply("n2", "n1", 1, granted=True, pre=True))
    assert core.status().role is Role.CANDIDATE


def test_a_second_answer_of_the_same_voter_is_not_counted() -> None:
    five = Config(frozenset(("n1", "n2", "n3", "n4", "n5")))
    core, storage = member(five)
    core.campaign()
    work(core, storage)
    for _ in range(3):
        core.step(VoteReply("n2", "n1", 1, granted=True, pre=True))
    assert core.status().role is Role.PRE_CANDIDATE


def test_an_acknowledgement_of_a_non_member_commits_nothing() -> None:
    core, storage = member(Config(frozenset(("n1", "n2"))))
    core.campaign()
    work(core, storage)
    core.step(VoteReply("n2", "n1", 1, granted=True, pre=True))
    work(core, storage)
    core.step(VoteReply("n2", "n1", 1, granted=True))
    work(core, storage)
    assert core.status().role is Role.LEADER
    core.step(AppendReply("n9", "n1", 1, 1))
    assert core.status().commit == 0
    core.step(AppendReply("n2", "n1", 1, 1))
    assert core.status().commit == 1


def test_a_committed_entry_that_cannot_be_read_does_not_end_its_leader(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    core, storage = member(Config(frozenset(("n1", "n2"))))
    core.campaign()
    for pre in (True, False):
        work(core, storage)
        core.step(VoteReply("n2", "n1", 1, granted=True, pre=pre))
    work(core, storage)
    work(core, storage)
    core.step(AppendReply("n2", "n1", 1, 1))
    assert core.status().commit == 1

    def term(index: int) -> int:
        raise EntryUnreadable(index, "1.seg", ValueError("damaged"))

    monkeypatch.setattr(storage, "term", term)
    monkeypatch.setattr(storage, "entries", lambda first, *_: term(first))
    # It hands over to the other member, which has the entry.
    assert work(core, storage).messages == [TimeoutNow("n1", "n2", 1)]


def test_entries_that_do_not_follow_each_other_are_refused() -> None:
    core, _ = member(THREE, 1)
    for entries in ([Entry(3, 1, b"")], [Entry(2, 1, b""), Entry(4, 1, b"")]):
        with pytest.raises(ProtocolError, match="n2 sends entries"):
            core.step(AppendRequest("n2", "n1", 1, 1, 1, entries, commit=0))
    assert core.status().last_index == 1


def test_a_member_cannot_have_more_than_its_leader() -> None:
    core, storage = leader()
    core.propose_change(ConfChange.parse("~n2"))
    work(core, storage)
    with pytest.raises(ProtocolError, match="n2 has 99"):
        core.step(AppendReply("n2", "n1", 1, 99))


def test_a_restart_keeps_term_vote_log_and_members() -> None:
    core, storage = member(THREE, 1, 1)
    core.step(VoteRequest("n2", "n1", 3, 2, 1))
    work(core, storage)
    four = Config(THREE.voters | {"n4"})
    change = Entry(3, 3, four.encode(), EntryKind.CONFIG)
    core.step(AppendRequest("n2", "n1", 3, 2, 1, [change], commit=2))
    work(core, storage)
    again = RaftCore(CoreSettings("n1", lambda _: 0), storage)
    status = again.status()
    assert (status.term, status.vote, status.last_index) == (3, "n2", 3)
    assert (status.config, status.config_index) == (four, 3)


def test_a_vote_waits_for_the_write_that_was_handed_out_before_it() -> None:
    core, storage = member()
    core.step(VoteRequest("n2", "n1", 1, 0, 0))
    first = core.ready()
    assert first.append is not None
    assert first.messages == []
    # Asked again while the write is in progress, it answers twice, but not sooner.
    core.step(VoteRequest("n2", "n1", 1, 0, 0))
    assert core.ready().messages == []
    storage.write(first.append)
    core.step(StorageAppended(first.append.number))
    replies = core.ready().messages
    assert [(type(m), m.to) for m in replies] == [(VoteReply, "n2"), (VoteReply, "n2")]


def test_the_same_calls_make_the_same_messages() -> None:
    def play() -> list[str]:
        core, storage = member()
        lines: list[str] = []
        for _ in range(30):
            core.tick()
            lines += map(str, work(core, storage).messages)
        return lines

    assert play() == play()
    assert len(play()) >= 4


def test_a_refusal_has_a_reason_and_a_leader_and_can_be_pickled() -> None:
    core, _ = member(THREE, 1)
    core.step(Heartbeat("n2", "n1", 1, commit=0, round=0))
    with pytest.raises(ProposalDropped) as refused:
        core.propose(b"x")
    error = pickle.loads(pickle.dumps(refused.value))
    assert isinstance(error, Dropped)
    assert (error.reason, error.leader) == (DropReason.NOT_LEADER, "n2")
    assert str(error) == "another member leads, try n2"


@pytest.mark.parametrize(
    "wrong",
    [{"election_ticks": 1}, {"heartbeat_ticks": 10}, {"append_bytes_max": 0}, {"node": ""}],
)
def test_settings_that_make_no_sense_are_named(wrong: dict[str, object]) -> None:
    given: dict[str, object] = {"node": "n1", "draw": lambda _: 0} | wrong
    with pytest.raises(InvalidInput, match=r"setting|member"):
        CoreSettings(**given)  # type: ignore[arg-type]
