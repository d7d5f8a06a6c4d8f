"""What has gone through a topic and how fast: its own counts, and those of each of its clients.

Counters belong to whoever counts: the topic what came in, producers, subscriptions and consumers
what is theirs. Here they are put together, and noted now and then, so that there are rates
(`rates.py`). What subscriptions that are gone have delivered still counts.

A topic may have thousands of clients: they are noted in steps (`topics/disk_steps.py`).

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
    from lithify.topics.subscriptions.subscription import Consumer, Subscription
    from lithify.topics.topic import Topic

__all__ = ["Throughput"]

NOTED_A_STEP = 1000
"""Clients, about 1 ms."""


class Throughput:
    """The counts and rates of one topic."""

    def __init__(self, topic: Topic, clock: Clock) -> None:
        self._topic = topic
        self._clock = clock
        self._gone_out = (0, 0)
        self._rates = Rates(clock.monotonic_s(), (0, 0, 0, 0))
        self._rates_by_client = RatesByOwner(clock.monotonic_s())

    def remove_subscription(self, subscription: Subscription) -> None:
        """A subscription was removed: what it has delivered is remembered."""
        messages, size_bytes = self._gone_out
        self._gone_out = (
            messages + subscription.delivered_messages,
            size_bytes + subscription.delivered_bytes,
        )

    def delivered(self) -> tuple[int, int]:
        """(messages, bytes) that went to consumers, those of subscriptions that are gone too."""
        messages, size_bytes = self._gone_out
        for each in self._topic.subscriptions.values():
            messages += each.delivered_messages
            size_bytes += each.delivered_bytes
        return messages, size_bytes

    def noting(self) -> Steps[None]:
        """Remember what the counters are now, if it is time to."""
        now_s = self._clock.monotonic_s()
        if not self._rates_by_client.is_due(now_s):
            return
        self._rates.sample(now_s, self._counters())
        noted: dict[object, tuple[int, int]] = {}
        for number, client in enumerate(self._clients(), 1):
            noted[client] = _counters_of(client)
            if not number % NOTED_A_STEP:
                yield None
        self._rates_by_client.sample(now_s, noted)

    def rates(self) -> list[float]:
        """Messages in, bytes in, messages out and bytes out, a second."""
        return self._rates.per_second(self._clock.monotonic_s(), self._counters())

    def client_rate(self, client: Producer | Subscription | Consumer) -> tuple[float, float]:
        """Messages and bytes a second of a producer, a subscription or a consumer."""
        counters = _counters_of(client)
        return self._rates_by_client.per_second(self._clock.monotonic_s(), client, counters)

    def _counters(self) -> tuple[int, int, int, int]:
        return self._topic.writer.messages_in, self._topic.writer.bytes_in, *self.delivered()

    def _clients(self) -> Iterator[Producer | Subscription | Consumer]:
        """Those that there are when their turn comes."""
        yield from list(self._topic.producers.joined.values())
        for each in list(self._topic.subscriptions.values()):
            yield each
            yield from list(each.consumers)


def _counters_of(client: Producer | Subscription | Consumer) -> tuple[int, int]:
    if isinstance(client, Producer):
        return client.messages, client.bytes
    return client.delivered_messages, client.delivered_bytes
