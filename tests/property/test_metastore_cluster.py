"""The metastore keeps its promises in a bad world, for every seed; see `metastore_cluster.py`."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.property.metastore_cluster import simulate


@pytest.mark.parametrize("first", range(0, 60, 15))
def test_watches_miss_nothing_and_leases_end_in_time(first: int) -> None:
    counts: Counter[str] = Counter()
    for seed in range(first, first + 15):
        counts += simulate(seed, steps=2500).counts
    # A world where nothing happens proves nothing.
    for what, least in (("put", 100), ("cas", 100), ("get", 100), ("seen", 1000), ("pairs", 30)):
        assert counts[what] > least, counts
    for what in ("expired", "compacted watches", "compactions", "crashes", "load", "transfers"):
        assert counts[what] > 10, counts


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1000, 2000, 100))
def test_watches_miss_nothing_for_long(first: int) -> None:
    for seed in range(first, first + 100):
        simulate(seed, steps=4000)
