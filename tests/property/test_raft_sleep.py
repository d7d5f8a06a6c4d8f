"""A group that sleeps wakes when it must, for every seed; see `raft_sleep.py`.

The simulator must be able to fail: rules are left out one by one, and it finds that out.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from lithify.raft.core.follower import Follower
from lithify.raft.core.leader import Leader
from lithify.raft.core.sleep import LeaderSleep
from lithify.raft.node.group_ticks import GroupTicks
from lithify.raft.node.peer_liveness import PeerLiveness
from tests.property.raft_sleep import simulate


@pytest.mark.parametrize("first", range(0, 20, 10))
def test_an_idle_group_sleeps_and_wakes_whatever_happens(first: int) -> None:
    counts: Counter[str] = Counter()
    for seed in range(first, first + 10):
        counts += simulate(seed).counts
    # A world where nothing happens proves nothing.
    for what, least in (("asleep", 80), ("put", 30), ("crashes", 25)):
        assert counts[what] > least, counts


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1000, 2000, 200))
def test_an_idle_group_sleeps_and_wakes_in_long_runs(first: int) -> None:
    for seed in range(first, first + 200):
        simulate(seed, steps=3000)


def simulate_some(seeds: int = 20) -> None:
    for seed in range(seeds):
        simulate(seed)


def test_a_leader_that_ignores_the_logs_of_its_members_is_detected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It sends those to sleep that lack entries."""

    def is_settled(self: Leader) -> bool:
        log = self.engine.log
        return log.committed == log.applied == log.stable == log.last_index

    monkeypatch.setattr(Leader, "_is_settled", is_settled)
    with pytest.raises(AssertionError, match="stopped: "):
        simulate_some()


def test_a_leader_that_does_not_wait_for_the_answers_is_detected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Members that have not slept campaign, again and again."""
    monkeypatch.setattr(LeaderSleep, "is_complete", lambda self, _: self.is_offered)
    with pytest.raises(AssertionError, match="no sleep"):
        simulate_some()


def test_a_death_of_a_node_that_wakes_no_group_is_detected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Follower, "peer_changed", lambda *_: None)
    with pytest.raises(AssertionError, match="no leader after"):
        simulate_some()


def test_a_silence_that_is_not_noticed_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    """Restarts are, so it takes a process that stays away."""
    monkeypatch.setattr(PeerLiveness, "tick", lambda _: [])
    with pytest.raises(AssertionError, match=r"no leader|no sleep"):
        simulate_some()


def test_a_lost_waking_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    worked = GroupTicks.worked

    def asleep_for_good(self: GroupTicks, name: str, group: Any) -> None:
        if name in self.awake or not group.status().last_index:
            worked(self, name, group)

    monkeypatch.setattr(GroupTicks, "worked", asleep_for_good)
    with pytest.raises(AssertionError, match=r"no leader|no sleep|no progress"):
        simulate_some()
