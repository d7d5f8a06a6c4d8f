"""Peers that do not keep up cost the broker nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.patience import PROCESS_S_MAX, wait_until
from tests.protocol.raw import RawClient, Type, send_frame

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.protocol.harness import Server

MIB = 2**20
TOPIC_MIB = 200


def steady(broker: Server) -> int:
    """The broker's memory, once it has stopped moving."""
    seen: list[int] = []

    def stands_still() -> bool:
        seen.append(broker.memory_bytes)
        return len(seen) > 1 and abs(seen[-1] - seen[-2]) <= MIB // 4

    wait_until(stands_still, every_s=0.3)
    return seen[-1]


def fill(broker: Server, topic: str) -> None:
    with RawClient(broker.port) as client:
        client.producer(topic)
        for number in range(TOPIC_MIB):
            client.send(send_frame(number, bytes(MIB)))
            client.expect(Type.SEND_RECEIPT)


def test_consumers_that_do_not_read(own_broker: Callable[..., Server]) -> None:
    broker = own_broker()
    fill(broker, "large")
    with RawClient(broker.port) as client:
        client.subscribe("large", "first")
        client.flow(10)
        for _ in range(10):
            client.expect(Type.MESSAGE)
    before = steady(broker)
    clients = [RawClient(broker.port) for _ in range(5)]
    for number, client in enumerate(clients):
        client.subscribe("large", f"s{number}")
        client.flow(1_000_000)
    # Each of them could have been sent 200 MiB by now.
    assert steady(broker) - before < 40 * MIB
    with RawClient(broker.port) as other:
        other.ping()
    for _ in range(TOPIC_MIB):
        clients[0].expect(Type.MESSAGE)
    for client in clients:
        client.__exit__()
    with RawClient(broker.port) as client:
        client.subscribe("large", "s1")
        client.flow(1)
        client.expect(Type.MESSAGE)


def test_a_producer_that_does_not_read(own_broker: Callable[..., Server]) -> None:
    """It is not read from, and what it managed to send is answered when it begins to read."""
    broker = own_broker()
    with RawClient(broker.port) as client:
        client.producer("flood")
        before = steady(broker)
        frames = b"".join(send_frame(number, b"x") for number in range(1000))
        client.socket.settimeout(1)
        sent = 0
        try:
            while sent < 400 * MIB:
                sent += client.socket.send(frames)
        except TimeoutError:
            pass
        assert sent < 400 * MIB
        assert steady(broker) - before < 40 * MIB
        client.socket.settimeout(PROCESS_S_MAX)
        assert client.expect(Type.SEND_RECEIPT).send_receipt.sequence_id == 0


def test_many_connections_come_and_go(own_broker: Callable[..., Server]) -> None:
    broker = own_broker()

    def crowd() -> None:
        clients = [RawClient(broker.port) for _ in range(300)]
        clients[-1].ping()
        for client in clients:
            client.__exit__()

    crowd()
    before, files = steady(broker), broker.open_files
    for _ in range(3):
        crowd()
    assert steady(broker) - before < 12 * MIB
    assert broker.open_files == files
