"""Raft's promises hold in a bad world, for every seed; `raft_simulator.py` says which."""

from __future__ import annotations

import pytest

from tests.property.raft_simulator import simulate


@pytest.mark.parametrize("first", range(0, 200, 50))
def test_a_group_keeps_its_promises(first: int) -> None:
    worlds = [simulate(seed, steps=2000) for seed in range(first, first + 50)]
    # A world where nothing happens proves nothing.
    assert sum(len(world.leaders) for world in worlds) > 50
    assert sum(len(world.applied) for world in worlds) > 1000
    assert sum(world.reads_answered for world in worlds) > 50


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1000, 6000, 500))
def test_a_group_keeps_its_promises_in_long_runs(first: int) -> None:
    for seed in range(first, first + 500):
        simulate(seed, steps=3000)
