"""A crowd of clients that come and go: nothing is lost, and the broker does not grow."""

from __future__ import annotations

import asyncio
import json
import random
import resource
import socket
import struct
import time
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import pytest

from lithify.pulsar.wire import wire_pb2 as wire
from lithify.pulsar.wire.framing import encode_command
from tests.patience import PROCESS_S_MAX
from tests.protocol.many_real_clients import take_part
from tests.protocol.many_scripted_clients import CONNECT, Crowd
from tests.protocol.raw import RawClient

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from tests.protocol.harness import Server

MIB = 2**20
TOPICS = 50
EACH = 4
"""Producers, and consumers, of each topic."""
SINGLE = {wire.CommandSubscribe.Exclusive, wire.CommandSubscribe.Failover}
"""Subscriptions with one consumer at a time: messages come in order."""
SUBSCRIPTIONS = TOPICS + (EACH - 1) * len(range(0, TOPICS, 4))
"""Of the real crowd: on every fourth topic each consumer has one of its own."""
IDLE = 10_000
CATCH_UP_SECONDS = PROCESS_S_MAX
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
    """Wait until the broker has at most `limit` open files; False if it keeps more."""
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
        async with asyncio.timeout(CATCH_UP_SECONDS):
            # On a busy machine a crowd takes longer to do so much.
            while sent_by(crowd) <= 100 * seconds or crowd.lives <= 2 * TOPICS * EACH:
                await first_failure([*producing, *consuming], 0.1)
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


def sent_by(crowd: Crowd) -> int:
    return sum(map(len, crowd.receipts.values()))


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
    assert crowd.missing == 0
    for number in range(TOPICS):
        if number % 4 in SINGLE:
            in_order(crowd, f"crowd-{number}")
    # Of each topic one more file is open now: the one that is read.
    assert files_fall_to(broker, files + TOPICS)
    assert own_memory_bytes(broker) - warm < GROWTH_BYTES_MAX
    assert "Traceback" not in broker.log, broker.log


def in_order(crowd: Crowd, topic: str) -> None:
    """What a producer sent came in that order, however often it came."""
    for (of, _), came in crowd.came.items():
        if of == topic:
            assert_in_order(value.decode() for value in came)


def assert_in_order(values: Iterable[str]) -> None:
    """Of each producer by itself: first times ascend."""
    numbers: dict[str, list[int]] = defaultdict(list)
    for value in dict.fromkeys(values):
        producer, number = value.split()
        numbers[producer].append(int(number))
    assert all(each == sorted(each) for each in numbers.values())


class RealCrowd:
    """As many real clients, in a few processes; see `many_real_clients.py`."""

    def __init__(self, broker: Server) -> None:
        self._broker = broker
        self._processes = [
            broker.start_case(
                take_part,
                number=number,
                topics=TOPICS,
                log=f"{broker.directory}-client-{number}.log",
            )
            for number in range(EACH)
        ]
        self.came: list[dict[str, list[str]]] = [defaultdict(list) for _ in range(EACH)]
        """By process, then by topic and subscription: what came, in order, repeats and all."""
        self._missing: dict[str, set[str]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            process.kill()
            process.communicate()

    def _ask(self, word: str) -> list[Any]:
        for process in self._processes:
            self._broker.tell(process, word)
        answers = [self._broker.heard(process, "answer") for process in self._processes]
        return [json.loads(Path(answer.split()[0]).read_text()) for answer in answers]

    def more(self) -> None:
        """Hear what came since; waits a moment if nothing did."""
        for came, new in zip(self.came, self._ask("more"), strict=True):
            for where, values in new.items():
                came[where] += values
                if where in self._missing:
                    self._missing[where].difference_update(values)

    def wait_for_all(self) -> None:
        """Until something has come to every subscription."""
        deadline = time.monotonic() + CATCH_UP_SECONDS
        served: set[str] = set()
        while len(served) < SUBSCRIPTIONS:
            assert time.monotonic() < deadline, f"{len(served)} subscriptions have messages"
            self.more()
            for share in self.came:
                served.update(where for where, values in share.items() if values)

    def stop(self) -> int:
        """Let producers end; how many messages have receipts."""
        receipts: dict[str, set[str]] = defaultdict(set)
        for number, made in enumerate(self._ask("stop")):
            for topic, numbers in made.items():
                receipts[topic].update(f"{number} {each}" for each in numbers)
        for where in set().union(*self.came):
            came = (share[where] for share in self.came)
            self._missing[where] = receipts[where.split()[0]].difference(*came)
        assert len(self._missing) == SUBSCRIPTIONS
        return sum(map(len, receipts.values()))

    @property
    def count(self) -> int:
        """How many messages have come, the same one to each subscription."""
        return sum(len(values) for share in self.came for values in share.values())

    @property
    def missing(self) -> int:
        """How much has a receipt and has not come to every subscription; after `stop`."""
        return sum(map(len, self._missing.values()))

    def end(self) -> None:
        for answer in self._ask("end"):
            assert answer == {"errors": []}
        for process in self._processes:
            self._broker.finish(process)


@pytest.mark.parametrize("seconds", [3, pytest.param(60, marks=pytest.mark.slow)])
def test_nothing_is_lost_to_real_clients(own_broker: Callable[..., Server], seconds: int) -> None:
    drops = 8 * seconds
    broker = own_broker(drops=drops)
    files = broker.open_files
    with RealCrowd(broker) as crowd:
        crowd.wait_for_all()
        begin = time.monotonic()
        warm = 0
        # On a busy machine a crowd takes longer to do so much.
        while (passed := time.monotonic() - begin) < seconds or crowd.count <= 100 * seconds:
            assert passed < seconds + CATCH_UP_SECONDS, f"{crowd.count} messages came"
            crowd.more()
            if not warm and passed > seconds / 3:
                warm = own_memory_bytes(broker)
        sent = crowd.stop()
        deadline = time.monotonic() + CATCH_UP_SECONDS
        while crowd.missing or broker.log.count("dropped a connection") < drops:
            assert time.monotonic() < deadline, f"{crowd.missing} did not come"
            crowd.more()
        grown = own_memory_bytes(broker) - warm
        crowd.end()
    print("sent", sent, "drops", drops, "grown by", grown, "bytes")
    for share in crowd.came:
        for where, values in share.items():
            if int(where.split()[0].removeprefix("crowd-")) % 4 == wire.CommandSubscribe.Exclusive:
                # Only there has one process seen every message, and so each for the first time.
                assert_in_order(values)
    # A topic has two logs, its messages and its cursors. Of each are open the lock and the file
    # that is written, and of the first the file that is read.
    assert files_fall_to(broker, files + 5 * TOPICS)
    assert grown < GROWTH_BYTES_MAX
    assert "Traceback" not in broker.log, broker.log


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
    limits = {"connections_max": 2 * IDLE, "connections_per_address_max": 2 * IDLE}
    broker = own_broker(limits=limits)
    files = broker.open_files
    idle_crowd(broker, 500)
    before = own_memory_bytes(broker)
    left = IDLE
    while left > 0:
        idle_crowd(broker, min(batch, left))
        left -= batch
    once = own_memory_bytes(broker)
    # Not all is released to the system, but it is used again.
    assert once - before < 200 * MIB
    assert files_fall_to(broker, files)
    idle_crowd(broker, min(batch, IDLE // 4))
    assert own_memory_bytes(broker) - once < GROWTH_BYTES_MAX
    assert files_fall_to(broker, files)
    assert "Traceback" not in broker.log, broker.log


def idle_crowd(broker: Server, count: int) -> None:
    """Open this many connections, see that the broker answers, close them."""
    hello = encode_command(CONNECT)
    sockets = []
    try:
        for number in range(count):
            each = socket.create_connection(("127.0.0.1", broker.port), timeout=PROCESS_S_MAX)
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
