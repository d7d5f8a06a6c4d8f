"""A partition that is moved keeps its promises in a bad world; see `rebalance_cluster.py`."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.property.rebalance_cluster import simulate


@pytest.mark.parametrize("first", range(0, 30, 10))
def test_a_group_ends_at_its_assignment_and_loses_nothing(first: int) -> None:
    counts: Counter[str] = Counter()
    for seed in range(first, first + 10):
        counts += simulate(seed, steps=2500).counts
    # A world where nothing happens proves nothing.
    for what, least in (("put", 50), ("get", 50), ("crashes", 10), ("retargeted", 20)):
        assert counts[what] > least, counts
    for what in ("changes", "leaves", "load", "finished", "lost races"):
        assert counts[what] > 3, counts


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1000, 2000, 100))
def test_a_group_ends_at_its_assignment_in_long_runs(first: int) -> None:
    for seed in range(first, first + 100):
        simulate(seed, steps=4000)
