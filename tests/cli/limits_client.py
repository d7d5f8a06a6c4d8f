"""The real client against a node with small limits: how much stays, expires or is refused."""

from __future__ import annotations

import json
import sys
import time
import urllib.request
from typing import TYPE_CHECKING, Any

import pulsar

if TYPE_CHECKING:
    from collections.abc import Callable

VALUE = b"x" * 1000
WAIT_S = 60.0
RECEIVE_MS = 60_000


def eventually(what: Callable[[], bool]) -> None:
    """A node reads its limits once a second."""
    deadline_s = time.monotonic() + WAIT_S
    while not what():
        assert time.monotonic() < deadline_s, "it never happened"
        time.sleep(0.05)


class Case:
    """A client, its topic with a durable subscription, and the node's word on it."""

    def __init__(self, pulsar_url: str, http_url: str) -> None:
        self._http = f"{http_url}/admin/v2/persistent/public/default/orders"
        logger = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
        self.client = pulsar.Client(pulsar_url, logger=logger)
        earliest = pulsar.InitialPosition.Earliest
        self.consumer = self.client.subscribe("orders", "slow", initial_position=earliest)
        self.producer = self.new_producer()

    def new_producer(self) -> pulsar.Producer:
        return self.client.create_producer("orders", batching_enabled=False)

    def ask(self, path: str) -> Any:
        with urllib.request.urlopen(f"{self._http}/{path}") as answer:
            return json.load(answer)

    def backlog(self) -> int:
        return int(self.ask("stats")["subscriptions"]["slow"]["msgBacklog"])

    def read(self) -> list[int]:
        """The numbers of all messages that are there."""
        reader = self.client.create_reader("orders", pulsar.MessageId.earliest)
        found = []
        while reader.has_message_available():
            found.append(int(reader.read_next(RECEIVE_MS).properties()["n"]))
        reader.close()
        return found


def retention(case: Case) -> None:
    """What is acknowledged goes, but for the newest; what is not stays."""
    for number in range(60):
        case.producer.send(VALUE, properties={"n": str(number)})
    for _ in range(30):
        case.consumer.acknowledge(case.consumer.receive(RECEIVE_MS))

    def half_is_gone() -> bool:
        # The segment with the last acknowledged one in it has others, too.
        return 0 < case.read()[0] <= 30

    eventually(half_is_gone)
    assert case.read()[-30:] == list(range(30, 60))
    for _ in range(30):
        case.consumer.acknowledge(case.consumer.receive(RECEIVE_MS))
    eventually(lambda: len(case.read()) < 20)
    left = case.read()
    assert left == list(range(left[0], 60))
    assert len(left) * len(VALUE) >= 8192 - 4096, "about the retention size stays"


def ttl(case: Case) -> None:
    """What no consumer takes counts as acknowledged after a while; the rest is delivered."""
    case.consumer.close()
    for _ in range(5):
        case.producer.send(VALUE)
    assert case.backlog() > 0
    eventually(lambda: case.backlog() == 0)
    case.producer.send(b"new")
    assert case.client.subscribe("orders", "slow").receive(RECEIVE_MS).data() == b"new"


def quota(case: Case) -> None:
    """A producer is refused, with the reason, until the subscription has caught up."""
    sent = 0

    def refused(send: Callable[[], object]) -> bool:
        try:
            send()
        except pulsar.ProducerBlockedQuotaExceededException:
            return True
        return False

    def goes_on() -> bool:
        nonlocal sent
        stopped = refused(lambda: case.producer.send(VALUE))
        sent += not stopped
        return stopped

    eventually(goes_on)
    assert sent > 10
    assert refused(case.new_producer)
    for _ in range(sent):
        case.consumer.acknowledge(case.consumer.receive(RECEIVE_MS))
    eventually(lambda: not refused(case.new_producer))
    case.new_producer().send(b"new")
    assert case.consumer.receive(RECEIVE_MS).data() == b"new", "nothing was written while refused"


if __name__ == "__main__":
    story = {"retention": retention, "ttl": ttl, "quota": quota}[sys.argv[1]]
    case = Case(*sys.argv[2:])
    story(case)
    case.client.close()
