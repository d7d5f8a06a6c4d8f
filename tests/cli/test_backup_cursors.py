"""Subscriptions in a backup that was made while producers sent and consumers acknowledged.

A message that a restored subscription does not deliver must have been acknowledged by the
consumer before the backup ended. A cursor that was saved later than its log would count messages as
acknowledged that are produced after the restore.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pulsar
import pytest

import lithify
from tests.cli.nodes import Served, served
from tests.cli.test_backup import run
from tests.fault.asking import EARLIEST, client_of
from tests.patience import PROCESS_S_MAX, wait_until

if TYPE_CHECKING:
    from pathlib import Path

TOPIC = "orders"
ALL, HOLES = "all", "holes"
END = b"end"
RECEIVE_MS = 1000


@dataclass
class Load:
    """A producer, and a consumer for each of two subscriptions, of the real client."""

    node: Served
    stop: threading.Event = field(default_factory=threading.Event)
    sent: int = 0
    """Messages that were acknowledged to the producer; they are numbers, from 0."""
    acked: dict[str, set[int]] = field(default_factory=lambda: {ALL: set(), HOLES: set()})
    """Numbers that a consumer has acknowledged, or was about to."""
    errors: list[BaseException] = field(default_factory=list)

    def start(self, client: pulsar.Client) -> None:
        shared = pulsar.ConsumerType.Shared
        consumers = {
            name: client.subscribe(TOPIC, name, consumer_type=shared, initial_position=EARLIEST)
            for name in self.acked
        }
        self.threads = [threading.Thread(target=self._produce, args=(client,))]
        self.threads += [
            threading.Thread(target=self._consume, args=(name, consumer))
            for name, consumer in consumers.items()
        ]
        for thread in self.threads:
            thread.start()

    def end(self) -> None:
        self.stop.set()
        for thread in self.threads:
            thread.join(PROCESS_S_MAX)

    def _produce(self, client: pulsar.Client) -> None:
        try:
            producer = client.create_producer(TOPIC)
            while not self.stop.is_set():
                producer.send(b"%d" % self.sent)
                self.sent += 1
        except pulsar.PulsarException as error:
            self.errors.append(error)

    def _consume(self, name: str, consumer: pulsar.Consumer) -> None:
        """All of them, or every second one by itself."""
        try:
            while not self.stop.is_set():
                try:
                    message = consumer.receive(RECEIVE_MS)
                except pulsar.Timeout:
                    continue
                number = int(message.data())
                if name == ALL or number % 2:
                    self.acked[name].add(number)
                    consumer.acknowledge(message)
        except pulsar.PulsarException as error:
            self.errors.append(error)


def delivered(node: Served) -> dict[str, set[int]]:
    """What the subscriptions of a restored node still deliver, up to a new message."""
    found: dict[str, set[int]] = {}
    with client_of(node) as client:
        shared = pulsar.ConsumerType.Shared
        consumers = {
            name: client.subscribe(TOPIC, name, consumer_type=shared) for name in (ALL, HOLES)
        }
        client.create_producer(TOPIC).send(END)
        for name, consumer in consumers.items():
            found[name] = set()
            # A cursor ahead of the log would count this one as acknowledged: it would never come.
            while (data := consumer.receive(20_000).data()) != END:
                found[name].add(int(data))
    return found


@pytest.mark.parametrize("rounds", [2, pytest.param(20, marks=pytest.mark.slow)])
def test_subscriptions_of_a_backup_under_load_lose_nothing(tmp_path: Path, rounds: int) -> None:
    with served(tmp_path / "data", LITHIFY_SEGMENT_BYTES_MAX="65536") as node:
        load = Load(node)
        with client_of(node) as client:
            load.start(client)
            try:
                for number in range(rounds):
                    wanted = load.sent + 300
                    wait_until(lambda: load.sent >= wanted or bool(load.errors))  # noqa: B023
                    sent = load.sent
                    run("backup", tmp_path / f"backup-{number}", "--url", node.http)
                    acked = {name: set(numbers) for name, numbers in load.acked.items()}
                    assert acked[ALL]
                    assert acked[HOLES]
                    check(tmp_path, number, sent, acked)
            finally:
                load.end()
    assert not load.errors


def check(tmp_path: Path, number: int, sent: int, acked: dict[str, set[int]]) -> None:
    data = tmp_path / f"again-{number}"
    run("restore", tmp_path / f"backup-{number}", "--data", data)
    with served(data) as node:
        left = delivered(node)
        # It would be cut when the topic is opened, and counted as read up to the log's end.
        assert "ahead of its log" not in node.logged()
    with lithify.open(str(data)) as library:
        values = [message.value for message in library.topics.get(TOPIC).read()]
    assert values.pop() == END
    saved = {int(value or b"") for value in values}
    assert saved == set(range(len(saved)))
    assert len(saved) >= sent
    for name, found in left.items():
        lost = saved - found - acked[name]
        assert not lost, f"{name}: {sorted(lost)[:10]} and {len(lost)} in all"
        assert name == ALL or found >= {each for each in saved if not each % 2}
