"""A node with few file descriptors and many topics."""

from __future__ import annotations

import socket
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pulsar
import pytest

from tests.cli.nodes import Served
from tests.fault.asking import ADMIN, RECEIVE_MS, WAIT_S, ask, client_of

if TYPE_CHECKING:
    from collections.abc import Iterator

LIMIT = 250
"""Descriptors: enough for 25 topics that are used at the same time."""


class Limited(Served):
    """A node that may open `LIMIT` files, and closes idle topics soon."""

    def __init__(self, data: Path) -> None:
        super().__init__(data, files_max=LIMIT, LITHIFY_TOPIC_IDLE_MS="2000")

    def files(self) -> int:
        return len(list(Path(f"/proc/{self.process.pid}/fd").iterdir()))

    def cpu_s(self) -> float:
        """Seconds of the processor that it has used."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / 100


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Limited]:
    found = Limited(tmp_path / "data")
    try:
        yield found
        assert "Traceback" not in found.logged(), found.logged()
    finally:
        found.close()


def topic(number: int) -> str:
    return f"persistent://public/default/t{number}"


def test_files_of_unused_topics_are_closed(node: Limited) -> None:
    """Four times as many topics as there are descriptors for, one after the other."""
    with client_of(node) as client:
        before = node.files()
        for number in range(100):
            producer = client.create_producer(topic(number))
            producer.send(b"%d" % number)
            producer.close()
        deadline_s = time.monotonic() + WAIT_S
        while node.files() > before + 10:
            assert time.monotonic() < deadline_s, (before, node.files())
            time.sleep(0.1)
        for number in range(100):
            reader = client.create_reader(topic(number), pulsar.MessageId.earliest)
            assert reader.read_next(RECEIVE_MS).data() == b"%d" % number
            reader.close()


def test_a_topic_too_many_gets_a_clear_error(node: Limited) -> None:
    with client_of(node) as client:
        producers = [client.create_producer(topic(number)) for number in range(LIMIT // 10)]
        with pytest.raises(pulsar.PulsarException, match="TooMany"):
            client.create_producer(topic(100))
        status, answer = ask(node, "PUT", f"{ADMIN}/one-more")
        assert (status, "open_topics_max" in answer["reason"]) == (503, True), answer
        assert ask(node, "GET", f"{ADMIN}/one-more/stats")[0] == 404, "it was not created"
        for number, producer in enumerate(producers):
            producer.send(b"%d continues" % number)
        producers.pop().close()
        deadline_s = time.monotonic() + WAIT_S
        while ask(node, "PUT", f"{ADMIN}/one-more")[0] != 204:
            assert time.monotonic() < deadline_s
            time.sleep(0.1)


def test_a_node_without_descriptors_waits_for_some(node: Limited) -> None:
    address = node.pulsar.removeprefix("pulsar://").split(":")
    with client_of(node) as client:
        producer = client.create_producer(topic(1))
        with ExitStack() as stack:
            for _ in range(LIMIT + 50):
                stack.enter_context(socket.create_connection((address[0], int(address[1]))))
            deadline_s = time.monotonic() + WAIT_S
            while "cannot be accepted" not in node.logged():
                assert time.monotonic() < deadline_s
                time.sleep(0.1)
            before_s = node.cpu_s()
            began_s = time.monotonic()
            while time.monotonic() - began_s < 3:
                producer.send(b"those who are connected are served")
                time.sleep(0.2)
            assert node.cpu_s() - before_s < 1.5
            assert node.logged().count("cannot be accepted") == 1
        with client_of(node) as other:
            other.create_producer(topic(2)).send(b"and others again")
