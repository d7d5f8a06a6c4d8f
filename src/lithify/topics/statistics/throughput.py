"""Counts and rates of a topic and of each of its clients.

Counters are kept where they are incremented: incoming messages in the topic's writer, the others in
producers, subscriptions and consumers. This module adds them up and samples them for the rates
(`rates.py`). The deliveries of removed subscriptions still count.

A topic may have thousands of clients, so they are sampled in steps (`topics/disk_steps.py`).

The topic's thread only; owned by the topic.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lithify.topics.producers.producers import Producer
from lithify.topics.statistics.rates import Rates, RatesByOwner

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lithify.clock import Clock
    from lithify.topics.disk_steps import Steps
    from lithify.topics.producers.producers import Producers
    from lithify.topics.producers.topic_writer import TopicWriter
    from lithify.topics.subscriptions.subscription import Consumer, Subscription

__all__ = ["Throughput"]

NOTED_A_STEP = 1000
"""Clients per step, about 1 ms."""


class Throughput:
    """The counts and rates of one topic."""

    def __init__(
        self,
        writer: TopicWriter,
        producers: Producers,
        subscriptions: dict[str, Subscription],
        clock: Clock,
    ) -> None:
        self._writer = writer
        self._producers = producers
        self._subscriptions = subscriptions
        self._clock = clock
        self._removed_out = (0, 0)
        self._rates = Rates(clock.monotonic_s(), (0, 0, 0, 0))
        self._rates_by_client = RatesByOwner(clock.monotonic_s())

    def remove_subscription(self, subscription: Subscription) -> None:
        """Keep the delivery counts of a removed subscription."""
        messages, size_bytes = self._removed_out
        self._removed_out = (
            messages + subscription.delivered_messages,
            size_bytes + subscription.delivered_bytes,
        )

    def delivered(self) -> tuple[int, int]:
        """(messages, bytes) delivered to consumers, including those of removed subscriptions."""
        messages, size_bytes = self._removed_out
        for each in self._subscriptions.values():
            messages += each.delivered_messages
            size_bytes += each.delivered_bytes
        return messages, size_bytes

    def noting(self) -> Steps[None]:
        """Sample all counters in steps, if a sample is due."""
        now_s = self._clock.monotonic_s()
        if not self._rates_by_client.is_due(now_s):
            return
        self._rates.sample(now_s, self._counters())
        sampled: dict[object, tuple[int, int]] = {}
        for number, client in enumerate(self._clients(), 1):
            sampled[client] = _counters_of(client)
            if not number % NOTED_A_STEP:
                yield None
        self._rates_by_client.sample(now_s, sampled)

    def rates(self) -> list[float]:
        """Rates per second: messages in, bytes in, messages out, bytes out."""
        return self._rates.per_second(self._clock.monotonic_s(), self._counters())

    def client_rate(self, client: Producer | Subscription | Consumer) -> tuple[float, float]:
        """Messages and bytes per second of a producer, a subscription or a consumer."""
        counters = _counters_of(client)
        return self._rates_by_client.per_second(self._clock.monotonic_s(), client, counters)

    def _counters(self) -> tuple[int, int, int, int]:
        return self._writer.messages_in, self._writer.bytes_in, *self.delivered()

    def _clients(self) -> Iterator[Producer | Subscription | Consumer]:
        """All clients; connections may change between steps."""
        yield from list(self._producers.joined.values())
        for each in list(self._subscriptions.values()):
            yield each
            yield from list(each.consumers)


def _counters_of(client: Producer | Subscription | Consumer) -> tuple[int, int]:
    if isinstance(client, Producer):
        return client.messages, client.bytes
    return client.delivered_messages, client.delivered_bytes
