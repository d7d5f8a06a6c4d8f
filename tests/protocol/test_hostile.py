"""Bytes that no client sends: the connection is closed with a reason, the broker continues."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lithify.pulsar.wire import wire_pb2 as wire
from lithify.pulsar.wire.framing import encode_command
from tests.protocol.raw import RawClient, Type, send_frame

if TYPE_CHECKING:
    from tests.protocol.harness import Server

few = settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


def reasons(broker: Server) -> int:
    return broker.log.count("connection closed")


def unharmed(broker: Server) -> None:
    assert broker.running
    with RawClient(broker.port) as client:
        client.producer("unharmed")
        client.send(send_frame(0, b"x"))
        client.expect(Type.SEND_RECEIPT)
    assert "Traceback" not in broker.log, broker.log


def command(kind: int, part: str, **fields: int) -> bytes:
    whole = wire.BaseCommand(type=wire.BaseCommand.Type.ValueType(kind))
    inner = getattr(whole, part)
    inner.SetInParent()
    for name, value in fields.items():
        setattr(inner, name, value)
    return encode_command(whole)


@few
@given(data=st.binary(min_size=1, max_size=200), introduced=st.booleans())
def test_random_bytes(broker: Server, data: bytes, introduced: bool) -> None:
    with RawClient(broker.port, connect=introduced) as client:
        client.send(data)
        client.end()
        assert client.is_closed
    unharmed(broker)


@few
@given(
    kind=st.sampled_from(sorted(wire.BaseCommand.Type.values())),
    body=st.binary(max_size=60),
    number=st.integers(2, 81),
)
def test_random_commands(broker: Server, kind: int, body: bytes, number: int) -> None:
    """A frame that is right around a command that is not."""
    tag = (number << 3) | 2
    varint = bytes([tag]) if tag < 128 else bytes([tag & 127 | 128, tag >> 7])
    inner = b"\x08" + bytes([kind]) + varint + bytes([len(body)]) + body
    frame = (4 + len(inner)).to_bytes(4, "big") + len(inner).to_bytes(4, "big") + inner
    with RawClient(broker.port) as client:
        client.send(frame)
        client.end()
        assert client.is_closed
    unharmed(broker)


@few
@given(data=st.data())
def test_commands_cut_and_changed(broker: Server, data: st.DataObject) -> None:
    good = send_frame(0, b"value") + command(
        Type.ACK, "ack", consumer_id=1, ack_type=wire.CommandAck.Individual
    )
    cut = data.draw(st.integers(0, len(good)))
    changed = bytearray(good)
    for _ in range(data.draw(st.integers(0, 3))):
        changed[data.draw(st.integers(0, len(good) - 1))] = data.draw(st.integers(0, 255))
    with RawClient(broker.port) as client:
        client.producer("changed")
        client.send(bytes(changed[:cut]))
        client.end()
        assert client.is_closed
    unharmed(broker)


@pytest.mark.parametrize(
    "data",
    [
        b"\xff\xff\xff\xff",
        b"\x7f\xff\xff\xff\x00\x00\x00\x04",
        b"\x00\x00\x00\x00",
        b"\x00\x00\x00\x10\x00\x00\x00\x40",
        (6 * 2**20).to_bytes(4, "big"),
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    ],
    ids=["4 GiB", "2 GiB", "nothing", "reaches past", "above limit", "HTTP", "TLS"],
)
@pytest.mark.parametrize("introduced", [False, True])
def test_invalid_lengths(broker: Server, data: bytes, introduced: bool) -> None:
    before = reasons(broker)
    with RawClient(broker.port, connect=introduced) as client:
        client.send(data)
        assert client.is_closed
    assert reasons(broker) == before + 1
    unharmed(broker)


def test_commands_before_the_invalid_one_are_answered(broker: Server) -> None:
    ping = command(Type.PING, "ping")
    with RawClient(broker.port) as client:
        client.send(ping + ping + b"\xff\xff\xff\xff")
        client.expect(Type.PONG)
        client.expect(Type.PONG)
        assert client.is_closed


def test_commands_before_connect(broker: Server) -> None:
    before = reasons(broker)
    for data in (
        command(Type.PING, "ping"),
        command(Type.FLOW, "flow", consumer_id=1, messagePermits=1),
        send_frame(0, b"x"),
    ):
        with RawClient(broker.port, connect=False) as client:
            client.send(data)
            assert client.is_closed
    assert reasons(broker) == before + 3


def test_a_producer_that_never_joined(broker: Server) -> None:
    before = reasons(broker)
    with RawClient(broker.port) as client:
        client.send(send_frame(0, b"x"))
        assert client.is_closed
    assert reasons(broker) == before + 1


def test_commands_of_the_other_side(broker: Server) -> None:
    with RawClient(broker.port) as client:
        client.send(command(Type.SUCCESS, "success", request_id=1))
        assert client.is_closed
    unharmed(broker)


def test_consumers_that_never_joined(broker: Server) -> None:
    """They may have been closed a moment ago, so most of it is ignored or answered."""
    with RawClient(broker.port) as client:
        client.flow(10, consumer_id=77)
        client.send(command(Type.ACK, "ack", consumer_id=77, ack_type=0))
        kind = Type.REDELIVER_UNACKNOWLEDGED_MESSAGES
        client.send(command(kind, "redeliverUnacknowledgedMessages", consumer_id=77))
        client.ping()
        client.send(command(Type.SEEK, "seek", consumer_id=77, request_id=1))
        client.expect(Type.ERROR)
        client.send(command(Type.UNSUBSCRIBE, "unsubscribe", consumer_id=77, request_id=2))
        client.expect(Type.ERROR)
        kind = Type.GET_LAST_MESSAGE_ID
        client.send(command(kind, "getLastMessageId", consumer_id=77, request_id=3))
        client.expect(Type.ERROR)
        client.send(command(Type.CLOSE_CONSUMER, "close_consumer", consumer_id=77, request_id=4))
        client.expect(Type.SUCCESS)
        client.ping()


def test_acknowledging_missing_messages(broker: Server) -> None:
    """Neither the future nor nonsense moves a cursor."""
    with RawClient(broker.port) as client:
        client.producer("future")
        client.subscribe("future")
        for ack_type in (0, 1):
            for ledger, entry in ((1, 50), (7, 0), (2**40, 2**40), (2**63 - 1, 2**63 - 1)):
                whole = wire.BaseCommand(type=Type.ACK)
                whole.ack.consumer_id = 1
                whole.ack.ack_type = wire.CommandAck.AckType.ValueType(ack_type)
                whole.ack.request_id = 5
                whole.ack.message_id.add(ledgerId=ledger, entryId=entry, ack_set=[-1])
                client.send(encode_command(whole))
                assert client.expect(Type.ACK_RESPONSE).ackResponse.HasField("error")
        client.send(send_frame(0, b"x"))
        client.expect(Type.SEND_RECEIPT)
        client.flow(1)
        client.expect(Type.MESSAGE)


def test_a_message_with_a_wrong_checksum(broker: Server) -> None:
    frame = bytearray(send_frame(0, b"value"))
    frame[-1] ^= 1
    with RawClient(broker.port) as client:
        client.producer("checked")
        client.send(bytes(frame) + send_frame(1, b"good"))
        refused = client.expect(Type.SEND_ERROR).send_error
        assert (refused.sequence_id, refused.error) == (0, wire.ServerError.ChecksumError)
        assert client.expect(Type.SEND_RECEIPT).send_receipt.sequence_id == 1
