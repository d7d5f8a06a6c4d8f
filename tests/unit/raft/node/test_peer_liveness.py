"""Which processes of other nodes are alive."""

from __future__ import annotations

from itertools import count

from lithify.raft.node.peer_liveness import PeerLiveness


def watching(silence_ticks: int = 3) -> PeerLiveness:
    drawn = count(100)
    return PeerLiveness("n1", lambda _: next(drawn), silence_ticks)


def test_an_unknown_node_has_no_epoch() -> None:
    liveness = watching()
    assert liveness.epoch_of("n2") == 0
    assert liveness.epoch_of("n1") == 101
    assert liveness.tick() == []


def test_a_node_is_silent_once_after_its_last_message() -> None:
    liveness = watching()
    assert not liveness.heard("n2", 7)
    assert [liveness.tick(), liveness.tick()] == [[], []]
    assert not liveness.heard("n2", 7)
    assert [liveness.tick(), liveness.tick()] == [[], []]
    assert liveness.epoch_of("n2") == 7
    assert liveness.tick() == ["n2"]
    assert liveness.epoch_of("n2") == 0
    assert liveness.tick() == []


def test_another_process_is_a_change_however_short_the_pause() -> None:
    liveness = watching()
    liveness.heard("n2", 7)
    assert liveness.heard("n2", 8)
    assert liveness.epoch_of("n2") == 8


def test_a_node_that_was_silent_comes_back_without_a_change() -> None:
    """Whatever relied on it was notified of the silence."""
    liveness = watching(1)
    liveness.heard("n2", 7)
    assert liveness.tick() == ["n2"]
    assert not liveness.heard("n2", 7)


def test_a_renewed_process_is_another_one() -> None:
    liveness = watching()
    before = liveness.epoch_of("n1")
    liveness.renew()
    assert liveness.epoch_of("n1") not in (0, before)
