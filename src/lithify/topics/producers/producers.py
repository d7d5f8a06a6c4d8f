"""The producers of one topic: names, access modes and fencing. Pure.

Access modes
    shared                 any number of producers
    exclusive              one; a second is refused, also an exclusive one if others are connected
    wait for exclusive     queued until it can be the only one
    exclusive with fencing the new producer disconnects all others and fences them

The topic epoch counts exclusive producers. A producer that returns with an older epoch than the
topic's has been fenced in the meantime and is refused.

Deduplication stores, for each producer name, the highest sequence id in the log. If it is on, a
message at or below that id is acknowledged and dropped (`deduplication.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from lithify.errors import InvalidInput
from lithify.exit_codes import CONFLICT
from lithify.topics.client_info import NOBODY, ClientInfo

__all__ = ["AccessMode", "Producer", "ProducerBusy", "ProducerFenced", "Producers"]


class AccessMode(IntEnum):
    """Access modes with their protocol numbers."""

    SHARED = 0
    EXCLUSIVE = 1
    WAIT_FOR_EXCLUSIVE = 2
    EXCLUSIVE_WITH_FENCING = 3


class ProducerBusy(InvalidInput):
    """The name is in use, or the topic has an exclusive producer."""

    exit_code = CONFLICT


class ProducerFenced(InvalidInput):
    """Another producer has exclusive access to the topic."""

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
    """The joined and the waiting producers of a topic."""

    def __init__(self, topic_epoch: int = 0) -> None:
        self.topic_epoch = topic_epoch
        self.joined: dict[str, Producer] = {}
        self.waiting: dict[Producer, None] = {}
        """In order of arrival."""
        self.exclusive: Producer | None = None

    def add(self, producer: Producer) -> tuple[bool, list[Producer]]:
        """Add a producer: (may it write now, producers that were removed for it).

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
            removed = [*self.joined.values(), *self.waiting]
            self.joined.clear()
            self.waiting.clear()
            self.exclusive = None
            self._join(producer)
            return True, removed
        if others and mode is AccessMode.EXCLUSIVE:
            raise ProducerFenced(f"the topic already has {others} producers")
        if others and mode is AccessMode.SHARED and self.exclusive is not None:
            raise ProducerBusy(f"producer {self.exclusive.name} has exclusive access to the topic")
        # The new producer is admitted: only now remove the old one.
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
        """The same producer on an earlier connection, which the new one replaces."""
        old = self.joined.get(producer.name)
        if old is None:
            return None
        if producer.user_named or old.user_named or producer.epoch <= old.epoch:
            raise ProducerBusy(f"a producer named {producer.name} is already connected")
        return old

    def _join(self, producer: Producer) -> None:
        if producer.mode is not AccessMode.SHARED:
            # A returning producer keeps its epoch; a new one starts the next.
            if producer.topic_epoch is None or producer.topic_epoch != self.topic_epoch:
                self.topic_epoch += 1
            producer.topic_epoch = self.topic_epoch
            self.exclusive = producer
        self.joined[producer.name] = producer

    def remove(self, producer: Producer) -> Producer | None:
        """Remove a producer; returns the waiting producer that joined in its place, if any."""
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
