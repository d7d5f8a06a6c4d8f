"""Members that lose their disks lose nothing that was acknowledged; see `raft_wiped.py`."""

from __future__ import annotations

from collections import Counter

import pytest

from lithify.raft.net.peer_recognition import PeerRecognition
from tests.property.raft_wiped import Wiped, simulate


@pytest.mark.parametrize("first", range(0, 30, 15))
def test_a_disk_that_was_replaced_forks_nothing(first: int) -> None:
    counts: Counter[str] = Counter()
    for seed in range(first, first + 15):
        counts += simulate(seed, steps=1500).counts
    # A world where nothing happens proves nothing.
    for what, least in (("wipes", 5), ("disowned", 5), ("rebuilt", 5), ("put", 50), ("get", 50)):
        assert counts[what] >= least, counts


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1000, 2000, 100))
def test_a_disk_that_was_replaced_forks_nothing_in_long_runs(first: int) -> None:
    for seed in range(first, first + 100):
        simulate(seed, steps=3000)


def simulate_some(*seeds: int) -> None:
    for seed in seeds:
        simulate(seed, steps=1500)


def test_without_identities_two_histories_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PeerRecognition, "refusal", lambda *_: "")
    monkeypatch.setattr(PeerRecognition, "may_vote", lambda *_: True)
    # What a member notices by itself is not what is to be shown here.
    monkeypatch.setattr(Wiped, "nobody_stops", False)
    with pytest.raises(AssertionError, match=r"two histories at|linearizable"):
        simulate_some(104)
