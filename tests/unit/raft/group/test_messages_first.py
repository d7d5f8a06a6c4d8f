"""What a group sends in a round goes out before it applies entries."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lithify.raft.core.messages import Commit
from lithify.raft.kv import format as kv
from tests.raft_members import Members

if TYPE_CHECKING:
    from lithify.raft.commands import Result
    from lithify.raft.core import RaftMessage


def test_a_commit_is_sent_before_the_leader_applies_it() -> None:
    members = Members("n1", "n2")
    members.elect("n1")
    leader, follower = members["n1"], members["n2"].group
    results: list[Result] = []
    leader.group.propose(kv.put(b"k", b"v"), results.append)
    for message in leader.settle():
        follower.receive(message)
    for message in members["n2"].settle():
        leader.group.receive(message)
    assert not results
    sent: list[tuple[type[RaftMessage], int]] = []

    def send(messages: list[RaftMessage]) -> None:
        sent.extend((type(message), len(results)) for message in messages)

    assert not leader.group.work(send).messages
    assert sent == [(Commit, 0)]
    assert len(results) == 1
