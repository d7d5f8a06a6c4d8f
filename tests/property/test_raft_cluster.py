"""Whole members keep their promises in a bad world, for every seed; see `raft_cluster.py`."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.property.raft_cluster import simulate


@pytest.mark.parametrize("first", range(0, 100, 20))
def test_nothing_answered_is_lost_and_reads_are_linearizable(first: int) -> None:
    counts: Counter[str] = Counter()
    for seed in range(first, first + 20):
        counts += simulate(seed, steps=2500).counts
    # A world where nothing happens proves nothing.
    for what, least in (("put", 200), ("get", 200), ("crashes", 50), ("snapshot", 100)):
        assert counts[what] > least, counts
    for what in ("load", "compact", "changes", "transfers"):
        assert counts[what] > 5, counts


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1000, 3000, 200))
def test_nothing_answered_is_lost_in_long_runs(first: int) -> None:
    for seed in range(first, first + 200):
        simulate(seed, steps=4000)
