"""The producers of one topic: names, access modes, fencing and deduplication. Pure.

Access modes
    shared                 any number
    exclusive              one; a second one is refused, and so is this one while others are there
    wait for exclusive     waits in line until it can be the only one
    exclusive with fencing the newcomer wins: all others are put out and refused afterwards

A topic epoch counts exclusive producers. One that comes back with an older epoch than the topic's
has been fenced meanwhile and is refused.

Deduplication keeps, for each producer name, the highest sequence id that was written. Where it is
switched on, a message at or below it is answered as written already and dropped.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from lithify.errors import CONFLICT, InvalidInput
from lithify.topics.producers.client import NOBODY, ClientInfo

__all__ = ["AccessMode", "Producer", "ProducerBusy", "ProducerFenced", "Producers"]


class AccessMode(IntEnum):
    """By the numbers of the protocol."""

    SHARED = 0
    EXCLUSIVE = 1
    WAIT_FOR_EXCLUSIVE = 2
    EXCLUSIVE_WITH_FENCING = 3


class ProducerBusy(InvalidInput):
    """The name is taken, or the topic has an exclusive producer."""

    exit_code = CONFLICT


class ProducerFenced(InvalidInput):
    """Another producer has taken the topic over."""

    exit_code = CONFLICT


@dataclass(slots=True, eq=False)
class Producer:
    """One producer of a topic."""

    name: str
    epoch: int = 0
    user_named: bool = False
    mode: AccessMode = AccessMode.SHARED
    topic_epoch: int | None = None
    messages: int = 0
    bytes: int = 0
    client: ClientInfo = NOBODY


class Producers:
    """Who may write to a topic now, and who waits."""

    def __init__(self, topic_epoch: int = 0) -> None:
        self.topic_epoch = topic_epoch
        self.joined: dict[str, Producer] = {}
        self.waiting: dict[Producer, None] = {}
        """In the order in which they came."""
        self.exclusive: Producer | None = None

    def add(self, producer: Producer) -> tuple[bool, list[Producer]]:
        """Let a producer join: (may it write now, those that were put out for it).

        Raises `ProducerBusy` or `ProducerFenced`.
        """
        mode = producer.mode
        if producer.topic_epoch is not None and producer.topic_epoch < self.topic_epoch:
            raise ProducerFenced(
                f"producer {producer.name} has topic epoch {producer.topic_epoch}, "
                f"the topic is at {self.topic_epoch}"
            )
        old = self._older(producer)
        others = len(self.joined) - (old is not None)
        if mode is AccessMode.EXCLUSIVE_WITH_FENCING:
            put_out = [*self.joined.values(), *self.waiting]
            self.joined.clear()
            self.waiting.clear()
            self.exclusive = None
            self._join(producer)
            return True, put_out
        if others and mode is AccessMode.EXCLUSIVE:
            raise ProducerFenced(f"the topic has {others} producers already")
        if others and mode is AccessMode.SHARED and self.exclusive is not None:
            raise ProducerBusy(f"producer {self.exclusive.name} has the topic for itself")
        # From here on it is let in: only now may the old one lose its place.
        if old is not None:
            del self.joined[old.name]
            if self.exclusive is old:
                self.exclusive = None
        if others and mode is AccessMode.WAIT_FOR_EXCLUSIVE:
            self.waiting[producer] = None
        else:
            self._join(producer)
        return producer not in self.waiting, [] if old is None else [old]

    def _older(self, producer: Producer) -> Producer | None:
        """The same producer on an earlier connection, whose place it takes over."""
        old = self.joined.get(producer.name)
        if old is None:
            return None
        if producer.user_named or old.user_named or producer.epoch <= old.epoch:
            raise ProducerBusy(f"a producer named {producer.name} is connected")
        return old

    def _join(self, producer: Producer) -> None:
        if producer.mode is not AccessMode.SHARED:
            # One that comes back keeps its epoch; a new one begins the next.
            if producer.topic_epoch is None or producer.topic_epoch != self.topic_epoch:
                self.topic_epoch += 1
            producer.topic_epoch = self.topic_epoch
            self.exclusive = producer
        self.joined[producer.name] = producer

    def remove(self, producer: Producer) -> Producer | None:
        """A producer left; the one that was waiting for that, if any, has joined."""
        if producer in self.waiting:
            del self.waiting[producer]
            return None
        if self.joined.get(producer.name) is not producer:
            return None
        del self.joined[producer.name]
        if self.exclusive is producer:
            self.exclusive = None
        if self.joined or not self.waiting:
            return None
        following = next(iter(self.waiting))
        del self.waiting[following]
        self._join(following)
        return following
