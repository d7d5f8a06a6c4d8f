"""The catalog keeps its promises in a bad world, for every seed; see `catalog_cluster.py`."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.property.catalog_cluster import simulate


@pytest.mark.parametrize("first", range(0, 6, 3))
def test_versions_and_listeners_survive_partitions_crashes_and_snapshots(first: int) -> None:
    counts: Counter[str] = Counter()
    for seed in range(first, first + 3):
        counts += simulate(seed, steps=3000).counts
    # A world where nothing happens proves nothing.
    for what, least in (("catalog changes", 20), ("versions", 20), ("unknown changes", 0)):
        assert counts[what] > least, counts
    assert counts["compactions"] > 0, counts


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1000, 1400, 50))
def test_versions_and_listeners_survive_for_long(first: int) -> None:
    counts: Counter[str] = Counter()
    for seed in range(first, first + 50):
        counts += simulate(seed, steps=4000).counts
    for what in ("catalog snapshots", "crashes", "jumps"):
        assert counts[what] > 0, counts
