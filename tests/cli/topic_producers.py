"""Pulsar producers and blob puts beside changes of definitions; what was acknowledged is read back.

A message belongs to the topic that exists at the end if it was sent after that one was created. A
topic of the same name before it has taken its messages with it. So it is with blobs and stores.
"""

from __future__ import annotations

import random
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import httpx
import pulsar

from tests.cli.client_threads import ClientThreads
from tests.cli.definition_clients import NAMESPACES, STORES, TOPICS, of_topic
from tests.cli.definition_record import now_ms
from tests.patience import PROCESS_S_MAX

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tests.cli.cluster_members import Member

MESSAGES = 20
ANSWER_MS = 20_000
NO_MORE_MS = 5_000
"""Time without a message after which a read is at the end."""


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """A message, or a blob, and where it is."""

    name: str
    payload: bytes
    sent_ms: int
    blob: str = ""


class Producers(ClientThreads):
    """Threads that produce to topics and put into stores at all nodes; started by `with`."""

    def __init__(self, nodes: list[Member], urls: str, seed: int) -> None:
        self._nodes = nodes
        self._urls = urls
        self._random = random.Random(seed)
        self.messages: list[Acknowledged] = []
        self.blobs: list[Acknowledged] = []
        super().__init__([partial(self._repeat, work) for work in (self._produce, self._put)])

    def _repeat(self, work: Callable[[], None]) -> None:
        while not self.ended.is_set():
            work()

    def _produce(self) -> None:
        client = client_of(self._urls)
        try:
            for _ in range(10):
                name = of_topic(self._random.choice(NAMESPACES), self._random.choice(TOPICS))
                with suppress(pulsar.PulsarException):
                    self._send(client, name)
                if self.ended.is_set():
                    return
        finally:
            client.close()

    def _send(self, client: pulsar.Client, name: str) -> None:
        producer = client.create_producer(name, send_timeout_millis=ANSWER_MS)
        try:
            for number in range(MESSAGES):
                sent_ms = now_ms()
                payload = b"%d %d" % (sent_ms, number)
                producer.send(payload)
                self.messages.append(Acknowledged(name, payload, sent_ms))
        finally:
            producer.close()

    def _put(self) -> None:
        store, node = self._random.choice(STORES), self._random.choice(self._nodes)
        sent_ms = now_ms()
        payload = b"%d" % sent_ms
        try:
            url = f"{node.url}/blobs/{store}"
            answer = httpx.post(url, content=payload, follow_redirects=True, timeout=PROCESS_S_MAX)
        except httpx.HTTPError:
            answer = None
        if answer is not None and answer.is_success:
            self.blobs.append(Acknowledged(store, payload, sent_ms, answer.json()["id"]))
        self.ended.wait(0.05)


def client_of(urls: str) -> pulsar.Client:
    logger = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    return pulsar.Client(urls, logger=logger, operation_timeout_seconds=ANSWER_MS // 1000)


def lost_messages(
    urls: str, acknowledged: list[Acknowledged], created_ms: Mapping[str, int]
) -> list[str]:
    """Messages of topics that exist, by name with the time since when, that cannot be read."""
    problems = []
    client = client_of(urls)
    for name in sorted({each.name for each in acknowledged} & created_ms.keys()):
        wanted = {
            each.payload
            for each in acknowledged
            if each.name == name and each.sent_ms > created_ms[name]
        }
        if not wanted:
            continue
        consumer = client.subscribe(
            name, "read-back", initial_position=pulsar.InitialPosition.Earliest
        )
        with suppress(pulsar.Timeout):
            while wanted:
                wanted.discard(consumer.receive(timeout_millis=NO_MORE_MS).data())
        consumer.close()
        if wanted:
            problems.append(f"{name} has lost {len(wanted)} messages, as {min(wanted)!r}")
    client.close()
    return problems


def lost_blobs(
    node: Member, acknowledged: list[Acknowledged], created_ms: Mapping[str, int]
) -> list[str]:
    """Blobs of stores that exist that cannot be read."""
    problems = []
    for each in acknowledged:
        if each.sent_ms <= created_ms.get(each.name, each.sent_ms):
            continue
        url = f"{node.url}/blobs/{each.name}/{each.blob}"
        answer = httpx.get(url, follow_redirects=True, timeout=PROCESS_S_MAX)
        if answer.content != each.payload:
            problems.append(f"store {each.name} has lost {each.blob}: {answer.status_code}")
    return problems
