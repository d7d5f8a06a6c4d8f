"""The access modes of producers."""

from __future__ import annotations

import pytest

from lithify.topics.producers.producers import (
    AccessMode,
    Producer,
    ProducerBusy,
    ProducerFenced,
    Producers,
)


def exclusive(name: str, topic_epoch: int | None = None) -> Producer:
    return Producer(name, mode=AccessMode.EXCLUSIVE, topic_epoch=topic_epoch)


def joined(producers: Producers, producer: Producer) -> bool:
    return producers.joined.get(producer.name) is producer


def test_shared_producers_write_side_by_side() -> None:
    producers = Producers()
    first, second = Producer("a"), Producer("b")
    assert producers.add(first) == (True, [])
    assert producers.add(second) == (True, [])
    assert joined(producers, first)
    assert joined(producers, second)


def test_a_name_that_is_taken_is_refused() -> None:
    producers = Producers()
    producers.add(Producer("a", user_named=True))
    with pytest.raises(ProducerBusy, match="named a"):
        producers.add(Producer("a", epoch=1, user_named=True))


def test_a_returning_producer_replaces_itself() -> None:
    producers = Producers()
    old, new = Producer("node-1", epoch=0), Producer("node-1", epoch=1)
    producers.add(old)
    assert producers.add(new) == (True, [old])
    assert not joined(producers, old)
    producers.remove(old)
    assert joined(producers, new), "the old one's farewell comes late and changes nothing"


def test_a_refused_producer_replaces_no_other() -> None:
    producers = Producers()
    old, other = Producer("node-1", epoch=0), Producer("b")
    producers.add(old)
    producers.add(other)
    with pytest.raises(ProducerFenced):
        producers.add(Producer("node-1", epoch=1, mode=AccessMode.EXCLUSIVE))
    assert joined(producers, old)


def test_a_returning_producer_comes_before_waiting_ones() -> None:
    producers = Producers()
    old, waiting = Producer("node-1", epoch=0), Producer("w", mode=AccessMode.WAIT_FOR_EXCLUSIVE)
    producers.add(old)
    assert producers.add(waiting) == (False, [])
    new = Producer("node-1", epoch=1)
    assert producers.add(new) == (True, [old])
    assert producers.remove(new) is waiting


def test_an_exclusive_producer_is_alone() -> None:
    producers = Producers()
    first = exclusive("a")
    producers.add(first)
    with pytest.raises(ProducerBusy):
        producers.add(Producer("b"))
    with pytest.raises(ProducerFenced):
        producers.add(exclusive("c"))
    producers.remove(first)
    assert producers.add(Producer("b")) == (True, [])
    with pytest.raises(ProducerFenced, match="1 producers"):
        producers.add(exclusive("c"))


def test_waiting_producers_get_the_topic_in_order() -> None:
    producers = Producers()
    first = exclusive("a")
    second = Producer("b", mode=AccessMode.WAIT_FOR_EXCLUSIVE)
    third = Producer("c", mode=AccessMode.WAIT_FOR_EXCLUSIVE)
    producers.add(first)
    assert producers.add(second) == (False, [])
    assert producers.add(third) == (False, [])
    assert producers.remove(first) is second
    assert joined(producers, second)
    assert producers.remove(third) is None
    assert producers.remove(second) is None


def test_fencing_disconnects_other_producers_for_good() -> None:
    producers = Producers()
    first = exclusive("a")
    producers.add(first)
    waiting = Producer("b", mode=AccessMode.WAIT_FOR_EXCLUSIVE)
    producers.add(waiting)
    newcomer = Producer("c", mode=AccessMode.EXCLUSIVE_WITH_FENCING)
    assert producers.add(newcomer) == (True, [first, waiting])
    assert not joined(producers, first)
    with pytest.raises(ProducerFenced, match="topic epoch 1"):
        producers.add(exclusive("a", topic_epoch=first.topic_epoch))


def test_a_returning_exclusive_producer_keeps_its_epoch() -> None:
    producers = Producers()
    first = exclusive("a")
    producers.add(first)
    producers.remove(first)
    again = exclusive("a", topic_epoch=first.topic_epoch)
    producers.add(again)
    assert again.topic_epoch == first.topic_epoch
