"""Live indexes are what was added and not removed, whatever is asked when."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from lithify.raft import live_indexes
from lithify.raft.live_indexes import LiveIndexes


@pytest.mark.parametrize("seed", range(20))
def test_it_is_the_set_of_what_was_added_and_not_removed(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = Random(seed)
    monkeypatch.setattr(live_indexes, "NOTED_MAX", rng.choice((0, 5, 1000)))
    model = {index for index in range(1, 100) if rng.random() < 0.5}
    monkeypatch.setattr(live_indexes, "SPARSE_MIN", rng.choice((0, 16)))
    live = LiveIndexes(np.array(rng.sample(sorted(model), len(model)), np.int64))
    for index in range(100, 600):
        if rng.random() < 0.6:
            live.add(index)
            model.add(index)
        if model and rng.random() < 0.5:
            dead = rng.choice(sorted(model))
            live.remove(dead)
            model.remove(dead)
        if rng.random() < 0.02:
            assert list(live.live_set()) == sorted(model)
    assert len(live) == len(model)
    assert list(live.live_set()) == sorted(model)
