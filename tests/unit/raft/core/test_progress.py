"""What a leader knows of a follower: probing, replicating ahead, waiting for a snapshot."""

from __future__ import annotations

from lithify.raft.core.progress import Flow, Inflight, Progress


def progress(next_index: int = 5) -> Progress:
    return Progress(next_index, Inflight(messages_max=2, bytes_max=100))


def test_a_probe_is_one_message_at_a_time() -> None:
    peer = progress()
    peer.sent(7, 10)
    assert (peer.next, peer.paused) == (5, True)
    assert peer.rejected(4, hint=2)
    assert (peer.next, peer.paused) == (3, False)


def test_replicating_sends_ahead_up_to_a_number_of_messages() -> None:
    peer = progress()
    peer.acknowledged(4)
    peer.replicate()
    peer.sent(5, 10)
    peer.sent(6, 10)
    assert (peer.next, peer.paused) == (7, True)
    assert peer.acknowledged(5)
    assert (peer.match, peer.next, peer.paused) == (5, 7, False)


def test_replicating_sends_ahead_up_to_a_number_of_bytes() -> None:
    peer = progress()
    peer.replicate()
    peer.sent(5, 100)
    assert peer.paused
    peer.inflight.free_oldest()
    assert not peer.paused


def test_old_answers_change_nothing() -> None:
    peer = progress()
    peer.acknowledged(4)
    peer.replicate()
    peer.sent(6, 10)
    assert not peer.rejected(4, hint=1), "it has acknowledged 4 since"
    assert not peer.acknowledged(3)
    assert (peer.flow, peer.match, peer.next) == (Flow.REPLICATE, 4, 7)
    peer.probe(5)
    assert not peer.rejected(6, hint=1), "4 was asked about"


def test_a_rejection_while_replicating_goes_back_to_what_is_known() -> None:
    peer = progress()
    peer.acknowledged(4)
    peer.replicate()
    peer.sent(9, 10)
    assert peer.rejected(9, hint=6)
    assert (peer.flow, peer.next, len(peer.inflight)) == (Flow.PROBE, 5, 0)


def test_a_hint_is_never_below_the_acknowledged_index() -> None:
    peer = progress(9)
    peer.acknowledged(4)
    peer.next = 9
    assert peer.rejected(8, hint=1)
    assert peer.next == 5


def test_nothing_is_sent_while_a_snapshot_is() -> None:
    peer = progress()
    peer.await_snapshot()
    assert peer.paused
    assert not peer.rejected(4, hint=0)
    assert str(peer) == "snapshot match 0 next 5 paused"
