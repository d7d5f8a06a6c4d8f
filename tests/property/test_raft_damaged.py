"""A damaged last batch of the write-ahead log loses nothing that was acknowledged."""

from __future__ import annotations

from collections import Counter

import pytest

from lithify.raft.manifest import Manifest
from tests.property.raft_damaged import simulate


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
def test_a_damaged_last_batch_forks_nothing_for_long(first: int) -> None:
    for seed in range(first, first + 100):
        simulate(seed, steps=2500)


def simulate_some(*seeds: int) -> None:
    for seed in seeds:
        simulate(seed)


def test_a_member_that_votes_without_it_loses_what_was_acknowledged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Manifest, "doubt", lambda *_: None)
    with pytest.raises(AssertionError):
        simulate_some(0)
