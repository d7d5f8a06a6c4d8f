"""A snapshot travels from a leader to a member, and what may happen on the way."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from lithify.raft.snapshots.messages import (
    SnapshotAck,
    SnapshotEntries,
    SnapshotOffer,
    SnapshotPiece,
    TransferMessage,
    TransferState,
)
from tests.raft_members import Members

if TYPE_CHECKING:
    from lithify.raft.core import RaftMessage
    from lithify.raft.pending_work import Job

LIVE = 24


def behind(name: str = "n3") -> Members:
    """Three members, of which one has the first entries only: the others are behind a snapshot."""
    members = Members("n1", "n2", "n3")
    members.elect("n1")
    for number in range(10):
        members.put("n1", b"early%d" % number, b"value %d" % number)
    members.tick()
    members.lose = lambda message: name in (message.sender, message.to)
    for number in range(LIVE):
        members.put("n1", b"late%d" % number, b"value %d" % number)
        members.put("n1", b"changing", b"%d" % number)
    members.snapshot("n1")
    members.told.clear()
    members.lose = lambda _: False
    return members


def of(members: Members, kind: type[RaftMessage]) -> list[RaftMessage]:
    return [message for message in members.told if isinstance(message, kind)]


def check(members: Members, name: str) -> None:
    """The member has everything, and has it for good."""
    for _ in range(2):
        assert members.get(name, b"early3") == b"value 3"
        assert members.get(name, b"late%d" % (LIVE - 1)) == b"value %d" % (LIVE - 1)
        assert members.get(name, b"changing") == b"%d" % (LIVE - 1)
        members.crash(name)
        members.tick(3)


def test_live_entries_that_the_member_lacks_come_first_and_in_order() -> None:
    members = behind()
    applied = members["n3"].group.applied_index
    members.tick(3)
    (offer,) = of(members, SnapshotOffer)
    assert isinstance(offer, SnapshotOffer)
    entries = [entry for message in of(members, SnapshotEntries) for entry in message.entries]  # type: ignore[attr-defined]
    indexes = [entry.index for entry in entries]
    assert indexes == sorted(indexes)
    assert indexes[0] > applied
    assert indexes[-1] <= offer.head.meta.index
    # The late keys and the changing one; the early ones the member has.
    assert len(indexes) == LIVE + 1
    kinds = [type(m) for m in members.told if isinstance(m, TransferMessage)]
    sent = [kind for kind in kinds if kind is not SnapshotAck]
    assert sent == sorted(sent, key=[SnapshotOffer, SnapshotEntries, SnapshotPiece].index)
    check(members, "n3")


def test_a_new_member_gets_everything() -> None:
    members = Members("n1", joining=["n2"])
    members.elect("n1")
    for number in range(LIVE):
        members.put("n1", b"early3", b"value 3")
        members.put("n1", b"late%d" % number, b"value %d" % number)
        members.put("n1", b"changing", b"%d" % number)
    members.snapshot("n1")
    members.change("n1", "~n2")
    members.tick(3)
    check(members, "n2")


def test_every_message_may_be_lost_once() -> None:
    members = behind()
    seen: set[tuple[type[RaftMessage], int]] = set()

    def lose(message: RaftMessage) -> bool:
        if not isinstance(message, TransferMessage):
            return False
        known = (type(message), message.number) in seen
        seen.add((type(message), message.number))
        return not known

    members.lose = lose
    members.tick(150)
    assert len(seen) > 8
    check(members, "n3")


@pytest.mark.parametrize("count", range(1, 11))
def test_a_receiver_that_crashes_at_any_message_has_its_log_as_it_was(count: int) -> None:
    members = behind()
    before = members["n3"].group.overview()
    left = count

    def crash(message: RaftMessage) -> bool:
        nonlocal left
        if isinstance(message, TransferMessage) and message.to == "n3":
            left -= 1
            if not left:
                members.crash("n3")
                after = members["n3"].group.overview()
                for what in ("last_index", "snapshot_index", "live_entries"):
                    assert after[what] == before[what]
                return True
        return False

    members.lose = crash
    members.tick(200)
    assert left <= 0, "it did not crash"
    assert left <= 0
    check(members, "n3")


def test_a_leader_without_an_answer_gives_up_and_retries_later() -> None:
    members = behind()
    members.lose = lambda message: isinstance(message, TransferMessage)
    members.tick(10)
    first = len(of(members, SnapshotOffer))
    assert first == 3
    members.tick(200)
    # Each pause is twice as long as the last: 200 ticks have room for few more.
    assert first < len(of(members, SnapshotOffer)) <= 30
    members.lose = lambda _: False
    members.tick(150)
    check(members, "n3")


def test_a_newer_snapshot_replaces_the_transfer_in_progress() -> None:
    members = behind()
    members.lose = lambda message: isinstance(message, SnapshotPiece)
    members.tick(2)
    members.put("n1", b"more", b"x")
    members.snapshot("n1")
    members.lose = lambda _: False
    members.tick(30)
    offers = of(members, SnapshotOffer)
    assert len({message.head.meta.index for message in offers}) == 2  # type: ignore[attr-defined]
    check(members, "n3")
    assert members.get("n3", b"more") == b"x"


def test_a_leader_that_is_followed_by_another_ends_the_transfer() -> None:
    members = behind()
    before = members["n3"].group.overview()
    members.lose = lambda message: isinstance(message, SnapshotPiece)
    members.tick(2)
    members["n1"].group.transfer("n2")
    members.settle()
    assert members["n2"].group.leader == "n2"
    members.tick(20)
    after = members["n3"].group.overview()
    assert after["applied_index"] >= before["applied_index"]
    members.lose = lambda _: False
    members.tick(60)
    check(members, "n3")


def test_a_receiver_without_a_sender_deletes_what_it_received() -> None:
    members = behind()
    members.lose = lambda message: isinstance(message, SnapshotPiece)
    members.tick(2)
    storage = members["n3"].storage
    assert storage.installs
    members.lose = lambda message: "n3" in (message.sender, message.to)
    members.tick(10)
    assert not storage.installs
    members.lose = lambda _: False
    members.tick(120)
    check(members, "n3")


def test_a_snapshot_of_a_newer_machine_is_refused() -> None:
    members = behind()
    members["n3"].group._receiving._machine.version = 0  # type: ignore[misc]
    members.tick(3)
    (refusal,) = of(members, SnapshotAck)
    assert isinstance(refusal, SnapshotAck)
    assert refusal.state is TransferState.REFUSED


def test_a_member_serves_while_a_snapshot_is_installed() -> None:
    """The worker is busy with it: the member hears, answers, and has its old state meanwhile."""
    members = behind()
    group = members["n3"].group
    applied = group.applied_index
    held: list[tuple[Job, object]] = []
    done = group.job_done

    def hold(job: Job, result: object) -> None:
        if job.what.startswith("install"):
            held.append((job, result))
        else:
            done(job, result)

    group.job_done = hold  # type: ignore[method-assign]
    members.tick(20)
    assert len(held) == 1
    assert group.applied_index == applied
    assert members.get("n1", b"changing") == b"%d" % (LIVE - 1)
    members.put("n1", b"later", b"value")
    term = members["n1"].group.status().term
    members.lose = lambda message: "n2" in (message.sender, message.to)
    # It is one of the majority that keeps the leader in its place.
    members.tick(30)
    assert (group.leader, group.status().term) == ("n1", term)
    members.lose = lambda _: False
    group.job_done = done  # type: ignore[method-assign]
    done(*held[0])
    members.tick(3)
    assert members.get("n3", b"later") == b"value"
    check(members, "n3")
