"""A group continues whatever its operators ask for, for every seed; see `raft_operators.py`.

The simulator must be able to fail: rules that were in force before are restored, and found out.
"""

from __future__ import annotations

import pytest

from lithify.raft.core import ConfChange, Config, DropReason, MemberChange, Op, ProposalDropped
from lithify.raft.core.configuration_change import changed
from lithify.raft.core.leader import Leader
from lithify.raft.core.quorum import has_quorum
from tests.property.raft_operators import simulate


@pytest.mark.parametrize("first", range(0, 60, 30))
def test_a_group_survives_whatever_its_operators_request(first: int) -> None:
    worlds = [simulate(seed, steps=1200) for seed in range(first, first + 30)]
    # A world where nothing happens proves nothing.
    assert sum(world.accepted for world in worlds) > 300
    assert sum(world.refused for world in worlds) > 300
    assert sum(len(world.gone) for world in worlds) > 30


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1000, 5000, 500))
def test_a_group_survives_its_operators_in_long_runs(first: int) -> None:
    for seed in range(first, first + 500):
        simulate(seed, steps=3000)


def who_ever_matched(self: Leader, change: ConfChange) -> ConfChange:
    """A new voter listens first only if too few would otherwise know the group."""
    self._check_may_change()
    engine, config = self.engine, self.engine.members.config
    if config.joint:
        return change
    after = changed(config, change)
    knows = {peer for peer, progress in self.progress.items() if progress.match}
    if after.voters <= config.voters or has_quorum(after, knows | {engine.node}):
        return change
    new = sorted(after.voters - config.members)
    if not new:
        raise ProposalDropped(DropReason.NOT_HEARD, engine.node)
    return ConfChange(tuple(MemberChange(Op.LEARNER, name) for name in new))


def judge_nothing(self: Leader, change: ConfChange, after: Config) -> None: ...


def judge_only_the_new(self: Leader, change: ConfChange, after: Config) -> None:
    """New voters are learners that have the log, but the others are not checked."""
    before = self.engine.members.config
    new = after.voters - before.electorate
    if any(name not in self.progress or not self.progress[name].match for name in new):
        raise ProposalDropped(DropReason.LEARNER_FIRST, self.engine.node)


def simulate_some(seeds: int) -> None:
    for seed in range(seeds):
        simulate(seed, steps=1200)


def test_counting_members_that_ever_matched_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Leader, "prepared", who_ever_matched)
    monkeypatch.setattr(Leader, "_judge", judge_nothing)
    with pytest.raises(AssertionError, match="no progress"):
        simulate_some(20)


def test_removing_without_a_check_of_the_quorum_is_detected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Leader, "_judge", judge_only_the_new)
    with pytest.raises(AssertionError, match="no progress"):
        simulate_some(20)
