"""A whole node whose file system fails: I/O errors, and a disk that becomes read-only.

The node serves real sockets in a thread of the test, on a file system that fails when it is told.
"""

from __future__ import annotations

import asyncio
import subprocess
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pulsar
import pytest
import structlog

from lithify.fs import LocalFileSystem
from lithify.http import create_app
from lithify.node.node import Node
from lithify.node.settings import NodeSettings
from lithify.testing.faulty_fs import Fault, FaultyFileSystem
from tests.cli.nodes import COMMAND, served
from tests.fault.asking import ADMIN, EARLIEST, RECEIVE_MS, TOPIC, WAIT_S, ask, client_of, said
from tests.fault.disks import read_only, small_disk
from tests.fault.test_node_disks import DISK_BYTES
from tests.patience import PROCESS_S_MAX

if TYPE_CHECKING:
    from collections.abc import Iterator, MutableMapping
    from pathlib import Path
    from typing import Any

    from lithify.node.server import Addresses


class Failing:
    """A node in a thread, whose file system fails as `faults` say."""

    def __init__(self, data: Path) -> None:
        self.fs = FaultyFileSystem(LocalFileSystem(), [])
        self.pulsar = self.http = ""
        self._node = Node(NodeSettings(str(data), pulsar_port=0, http_port=0), fs=self.fs)
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()))
        self._thread.start()
        assert self._ready.wait(PROCESS_S_MAX)

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        await self._node.serve(stop=self._stop, ready=self._is_ready, make_app=create_app)

    def _is_ready(self, addresses: Addresses) -> None:
        self.pulsar, self.http = addresses.pulsar, addresses.http or ""
        self._ready.set()

    def close(self) -> None:
        self.fs.clear()
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()
        self._node.close()


@contextmanager
def failing(data: Path) -> Iterator[tuple[Failing, list[MutableMapping[str, Any]]]]:
    """(node, the lines that it logs)."""
    with structlog.testing.capture_logs() as lines:
        node = Failing(data)
        try:
            yield node, lines
        finally:
            node.close()
        assert not [line for line in lines if "exc_info" in line]


@pytest.mark.parametrize("kind", ["EIO", "EROFS"])
def test_a_producer_whose_disk_fails_times_out_and_resumes(tmp_path: Path, kind: str) -> None:
    with failing(tmp_path / "data") as (node, lines), client_of(node) as client:
        producer = client.create_producer(TOPIC, send_timeout_millis=2000)
        producer.send(b"before")
        node.fs.add(Fault("mutating", count=None, kind=kind))
        for _ in range(2):
            with pytest.raises(pulsar.Timeout):
                producer.send(b"lost, and said so")
        for path in ("health", "ready"):
            said(node, path, 503, "cannot be written")
        status, answer = ask(node, "PUT", f"{ADMIN}/new")
        assert status in (500, 503), answer
        node.fs.clear()
        deadline_s = time.monotonic() + WAIT_S
        while True:
            try:
                producer.send(b"after")
                break
            except pulsar.Timeout:
                assert time.monotonic() < deadline_s
        said(node, "health", 200, "ok")
        waits = [line for line in lines if "producers wait" in line["event"]]
        assert 1 <= len(waits) <= 3
        reader = client.create_reader(TOPIC, pulsar.MessageId.earliest)
        assert reader.read_next(RECEIVE_MS).data() == b"before"
        assert reader.read_next(RECEIVE_MS).data() == b"after"


def test_a_consumer_whose_disk_fails_a_read_is_refused(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with Node(NodeSettings(str(data))) as library:
        topic = library.topics.create(TOPIC)
        topic.append(value=b"cannot be read")
        topic.log.roll()
    with failing(data) as (node, lines), client_of(node) as client:
        for operation in ("pread", "readinto"):
            node.fs.add(Fault(operation, "*orders/log/000000000001.seg", count=None))
        consumer = client.subscribe(TOPIC, "reads", initial_position=EARLIEST)
        with pytest.raises(pulsar.Timeout):
            consumer.receive(2000)
        said(node, "health", 503, "000000000001.seg")
        with pytest.raises(pulsar.NotAllowedError):
            client.subscribe(TOPIC, "reads", pulsar.ConsumerType.Shared)
        told = [line for line in lines if "a subscription cannot read further" in line["event"]]
        assert len(told) == 1
        assert "Input/output error" in told[0]["reason"]


def test_a_node_on_a_read_only_disk_does_not_start_and_names_the_reason(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", DISK_BYTES) as disk:
        data = disk / "data"
        with served(data) as node, client_of(node) as client:
            client.create_producer(TOPIC).send(b"one")
        with read_only(disk):
            ports = ("--pulsar-port", "0", "--http-port", "0")
            serve = [str(COMMAND), "serve", "--data", str(data), *ports]
            done = subprocess.run(serve, capture_output=True, text=True, check=False)
            assert done.returncode == 1
            assert "Read-only file system" in done.stderr
            assert "Traceback" not in done.stderr
            log = data / "topics/public/default/orders/log"
            verify = [str(COMMAND), "log", "verify", str(log)]
            done = subprocess.run(verify, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stderr
        with served(data) as node, client_of(node) as client:
            reader = client.create_reader(TOPIC, pulsar.MessageId.earliest)
            assert reader.read_next(RECEIVE_MS).data() == b"one"
