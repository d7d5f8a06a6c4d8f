"""A damaged last batch of the write-ahead log loses nothing that was acknowledged."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest

from lithify.raft.group.possible_loss import PossibleLoss
from lithify.raft.storage.manifest import RaftManifest
from tests.property.raft_damaged import simulate

if TYPE_CHECKING:
    from lithify.raft.storage.storage import GroupStorage, RaftStorage


def one_of(*seeds: int) -> None:
    """Which seed shows a fault changes with the number of operations that a member does."""
    for seed in seeds:
        simulate(seed)


@pytest.mark.parametrize("first", range(0, 16, 8))
def test_a_damaged_last_batch_forks_nothing(first: int) -> None:
    counts: Counter[str] = Counter()
    for seed in range(first, first + 8):
        counts += simulate(seed).counts
    # A world where nothing happens proves nothing.
    for what, least in (("damages", 4), ("doubts", 50), ("trust", 4), ("put", 20)):
        assert counts[what] >= least, counts


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1000, 1400, 100))
def test_a_damaged_last_batch_forks_nothing_in_long_runs(first: int) -> None:
    for seed in range(first, first + 100):
        simulate(seed, steps=2500)


def test_a_member_that_votes_in_doubt_loses_what_was_acknowledged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begin = PossibleLoss.__init__

    def begin_and_vote(
        loss: PossibleLoss, storage: RaftStorage, own: GroupStorage, node: str
    ) -> None:
        begin(loss, storage, own, node)
        own.doubt_term = None

    monkeypatch.setattr(PossibleLoss, "__init__", begin_and_vote)
    with pytest.raises(AssertionError, match="two histories"):
        one_of(87)


def test_a_member_that_does_not_vote_after_losing_entries_stops_the_group(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its leader counts on entries that it has not: such members stop."""
    monkeypatch.setattr(RaftManifest, "doubt", lambda *_: None)
    with pytest.raises(AssertionError, match="no progress"):
        one_of(3)
