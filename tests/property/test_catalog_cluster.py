"""The catalog keeps its promises in a bad world, for every seed; see `catalog_cluster.py`."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.property.catalog_cluster import simulate


@pytest.mark.parametrize("first", range(0, 12, 4))
def test_versions_and_listeners_survive_partitions_crashes_and_snapshots(first: int) -> None:
    counts: Counter[str] = Counter()
    for seed in range(first, first + 4):
        counts += simulate(seed, steps=2000).counts
    # A world where nothing happens proves nothing.
    for what, least in (("catalog changes", 20), ("versions", 20), ("unknown changes", 2)):
        assert counts[what] > least, counts
    for what in ("catalog snapshots", "compactions", "crashes"):
        assert counts[what] > 0, counts


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1000, 1400, 50))
def test_versions_and_listeners_survive_for_long(first: int) -> None:
    counts: Counter[str] = Counter()
    for seed in range(first, first + 50):
        counts += simulate(seed, steps=4000).counts
    assert counts["jumps"] > 0, counts
