"""Ordered keys are the sorted keys of a state, whatever was added and removed since."""

from __future__ import annotations

from random import Random

import pytest

from lithify.raft import ordered_key_set
from lithify.raft.ordered_key_set import OrderedKeys, prefix_end


@pytest.mark.parametrize("added_max", [0, 3, 1024])
@pytest.mark.parametrize("loaded", [False, True])
def test_a_range_has_the_sorted_keys_of_the_state(
    added_max: int, loaded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ordered_key_set, "ADDED_MAX", added_max)
    rng = Random(added_max)
    state = {b"%d" % rng.randrange(300): 0 for _ in range(50)} if loaded else {}
    ordered = OrderedKeys(None if loaded else [])
    for _ in range(400):
        key = b"%d" % rng.randrange(300)
        if key in state:
            del state[key]
            ordered.discard(key)
        else:
            state[key] = 0
            ordered.add(key)
        start, end = (rng.choice((b"", b"%d" % rng.randrange(300))) for _ in range(2))
        expected = sorted(each for each in state if each >= start and (not end or each < end))
        if rng.random() < 0.5:
            assert list(ordered.range(start, end, state)) == expected


@pytest.mark.parametrize(
    ("prefix", "end"), [(b"a", b"b"), (b"a\xff\xff", b"b"), (b"", b""), (b"\xff", b"")]
)
def test_the_end_of_a_prefix_is_above_all_its_keys(prefix: bytes, end: bytes) -> None:
    assert prefix_end(prefix) == end
