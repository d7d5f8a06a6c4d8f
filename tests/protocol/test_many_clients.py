"""A crowd of clients that come and go: nothing is lost, and the broker does not grow."""

from __future__ import annotations

import asyncio
import random
import resource
import socket
import struct
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from lithify.pulsar import wire_pb2 as wire
from lithify.pulsar.framing import encode_command
from tests.protocol.crowd import CONNECT, Crowd
from tests.protocol.raw import RawClient

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.protocol.harness import Server

MIB = 2**20
TOPICS = 50
EACH = 4
"""Producers, and consumers, of each topic."""
IDLE = 10_000
CATCH_UP_SECONDS = 60
GROWTH_BYTES_MAX = 40 * MIB
NO_LINGER = struct.pack("ii", 1, 0)
"""Closed like this, a socket leaves no port behind that has to wait for a minute."""


def own_memory_bytes(broker: Server) -> int:
    """Without the files that it has mapped, which are the page cache's."""
    for line in Path(f"/proc/{broker.pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no RssAnon")


def files_fall_to(broker: Server, limit: int) -> bool:
    """Has it closed what it had open, but for so many? It may need a moment to get round to it."""
    for _ in range(1000):
        if broker.open_files <= limit:
            return True
        with RawClient(broker.port) as client:
            client.ping()
    return False


async def run_crowd(broker: Server, seconds: float) -> tuple[Crowd, int]:
    """Let it run; the broker's memory when it had just warmed up is the second."""
    crowd = Crowd(broker.port, random.Random(7))
    producing, consuming = [], []
    for number in range(TOPICS):
        topic = f"crowd-{number}"
        kind = list(wire.CommandSubscribe.SubType.values())[number % 4]
        for each in range(EACH):
            producing.append(asyncio.create_task(crowd.produce(topic, f"p{each}")))
            # An exclusive subscription has one consumer, so each gets its own.
            subscription = f"s{each}" if kind == wire.CommandSubscribe.Exclusive else "s"
            client = crowd.consume(topic, subscription, kind, f"c{each}")
            consuming.append(asyncio.create_task(client))
    try:
        await first_failure([*producing, *consuming], seconds / 3)
        warm = own_memory_bytes(broker)
        await first_failure([*producing, *consuming], seconds * 2 / 3)
        crowd.stopping = True
        await asyncio.wait_for(asyncio.gather(*producing), CATCH_UP_SECONDS)
        for _ in range(CATCH_UP_SECONDS * 10):
            if not crowd.missing:
                break
            await first_failure(consuming, 0.1)
    finally:
        for task in (*producing, *consuming):
            task.cancel()
        await asyncio.gather(*producing, *consuming, return_exceptions=True)
    return crowd, warm


async def first_failure(tasks: list[asyncio.Task[None]], seconds: float) -> None:
    """Let tasks run for a time, unless one of them fails."""
    done, _ = await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_EXCEPTION)
    for task in done:
        task.result()


@pytest.mark.parametrize("seconds", [8, pytest.param(60, marks=pytest.mark.slow)])
def test_nothing_is_lost(own_broker: Callable[..., Server], seconds: int) -> None:
    broker = own_broker()
    for number in range(TOPICS):
        with RawClient(broker.port) as client:
            client.producer(f"crowd-{number}")
    files = broker.open_files
    crowd, warm = asyncio.run(run_crowd(broker, seconds))
    sent = sum(map(len, crowd.receipts.values()))
    assert crowd.missing == 0
    assert sent > 100 * seconds
    assert crowd.lives > 2 * TOPICS * EACH
    for number in range(TOPICS):
        if number % 4 in {wire.CommandSubscribe.Exclusive, wire.CommandSubscribe.Failover}:
            in_order(crowd, f"crowd-{number}")
    # Of each topic one more file is open now: the one that is read.
    assert files_fall_to(broker, files + TOPICS)
    assert own_memory_bytes(broker) - warm < GROWTH_BYTES_MAX
    assert "Traceback" not in broker.log, broker.log


def in_order(crowd: Crowd, topic: str) -> None:
    """What a producer sent came in that order, however often it came."""
    for (of, _), came in crowd.came.items():
        if of == topic:
            for each in range(EACH):
                begin = b"p%d " % each
                numbers = [int(v.split()[1]) for v in came if v.startswith(begin)]
                assert numbers == sorted(numbers)


@pytest.fixture
def files_allowed() -> Iterator[int]:
    """As many descriptors as this process and its brokers may have, and they have them."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    yield 2 * IDLE if hard == resource.RLIM_INFINITY else hard
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_idle_connections(files_allowed: int, own_broker: Callable[..., Server]) -> None:
    """Ten thousand at a time where that many are allowed; every other one never says a word."""
    batch = min(IDLE, files_allowed - 500)
    broker = own_broker()
    files = broker.open_files
    idle_crowd(broker, 500)
    before = own_memory_bytes(broker)
    left = IDLE
    while left > 0:
        idle_crowd(broker, min(batch, left))
        left -= batch
    once = own_memory_bytes(broker)
    # Not all is given back to the system, but it is used again.
    assert once - before < 200 * MIB
    assert files_fall_to(broker, files)
    idle_crowd(broker, min(batch, IDLE // 4))
    assert own_memory_bytes(broker) - once < GROWTH_BYTES_MAX
    assert files_fall_to(broker, files)
    assert "Traceback" not in broker.log, broker.log


def idle_crowd(broker: Server, count: int) -> None:
    """Open so many connections, see that the broker answers, close them."""
    hello = encode_command(CONNECT)
    sockets = []
    try:
        for number in range(count):
            each = socket.create_connection(("127.0.0.1", broker.port), timeout=30)
            sockets.append(each)
            each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, NO_LINGER)
            if number % 2:
                each.sendall(hello)
        assert sockets[-1].recv(100)
        with RawClient(broker.port) as client:
            client.ping()
    finally:
        for each in sockets:
            each.close()
