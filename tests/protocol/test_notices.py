"""What the broker says without being asked."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from lithify.pulsar.wire import wire_pb2 as wire
from lithify.pulsar.wire.framing import encode_command
from tests.protocol.raw import RawClient, Type

if TYPE_CHECKING:
    from tests.protocol.harness import Server

FAILOVER = wire.CommandSubscribe.Failover


def notice(client: RawClient) -> tuple[int, bool]:
    change = client.expect(Type.ACTIVE_CONSUMER_CHANGE).active_consumer_change
    return change.consumer_id, change.is_active


def test_failover_consumers_are_notified_which_one_is_active(broker: Server) -> None:
    with RawClient(broker.port) as first, RawClient(broker.port) as second:
        first.subscribe("notices", kind=FAILOVER, consumer_id=1)
        assert notice(first) == (1, True)
        second.subscribe("notices", kind=FAILOVER, consumer_id=2)
        assert notice(second) == (2, False)
        close = wire.BaseCommand(type=Type.CLOSE_CONSUMER)
        close.close_consumer.consumer_id = 1
        close.close_consumer.request_id = 9
        first.send(encode_command(close))
        first.expect(Type.SUCCESS)
        assert notice(second) == (2, True)
        first.ping()


@pytest.mark.slow
def test_silent_peers_are_pinged_and_then_disconnected(broker: Server) -> None:
    with RawClient(broker.port) as quiet, RawClient(broker.port, connect=False) as unknown:
        for client in (quiet, unknown):
            client.socket.settimeout(80)
        assert unknown.is_closed
        quiet.expect(Type.PING)
        assert quiet.is_closed
    assert "no answer to PING" in broker.log
    assert "no CONNECT" in broker.log
