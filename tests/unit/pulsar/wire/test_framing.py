"""Frames are cut out of whatever pieces arrive; what cannot be a frame is refused by name."""

from __future__ import annotations

import pytest

from lithify.errors import LithifyError, ProtocolError
from lithify.pulsar.wire import wire_pb2 as wire
from lithify.pulsar.wire.framing import (
    FRAME_MARGIN_BYTES,
    check_text,
    encode_command,
    encode_payload,
    next_frame,
)
from tests.unit.pulsar.frames import LIMIT_BYTES, entry, send, split_frames

PING = wire.BaseCommand(type=wire.BaseCommand.PING, ping=wire.CommandPing())


def split(
    data: bytes, limit_bytes: int = LIMIT_BYTES
) -> tuple[list[tuple[bytes, bytes | None]], int]:
    frames, consumed = split_frames(memoryview(data), limit_bytes)
    plain = [(bytes(f.command), None if f.entry is None else bytes(f.entry)) for f in frames]
    return plain, consumed


def test_a_command_is_its_two_sizes_and_itself() -> None:
    assert encode_command(PING) == bytes.fromhex("00000009 00000005 0812 920100")


def test_a_command_is_decoded_as_it_was_encoded_and_has_no_entry() -> None:
    data = encode_command(PING)
    assert split(data) == ([(PING.SerializeToString(), None)], len(data))


def test_an_entry_is_sent_from_where_it_is() -> None:
    command = wire.BaseCommand(type=wire.BaseCommand.SEND)
    data = memoryview(bytearray(entry()))
    head, body = encode_payload(command, data)
    assert body is data
    assert split(bytes(head) + bytes(body))[0] == [(command.SerializeToString(), bytes(data))]


def test_an_entry_is_received_without_a_copy() -> None:
    buffer = bytearray(send(entry(b"old")))
    (frame,), _ = split_frames(memoryview(buffer), LIMIT_BYTES)
    buffer[-3:] = b"new"
    assert frame.entry is not None
    assert bytes(frame.entry[-3:]) == b"new"


def test_frames_do_not_depend_on_how_the_bytes_are_split() -> None:
    data = encode_command(PING) + send(entry(b"one")) + send(entry(b"")) + encode_command(PING)
    whole, consumed = split(data)
    assert len(whole) == 4
    assert consumed == len(data)
    for piece in range(1, len(data)):
        unread, seen = b"", []
        for at in range(0, len(data), piece):
            unread += data[at : at + piece]
            frames, consumed = split(unread)
            unread = unread[consumed:]
            seen += frames
        assert seen == whole
        assert unread == b""


def test_a_part_of_a_frame_is_not_consumed() -> None:
    data = encode_command(PING)
    for size in range(len(data)):
        assert split(data[:size]) == ([], 0)
        assert split(data + data[:size])[1] == len(data)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        ("00000003", "frame of 3 bytes has no room for its command's size"),
        ("00000000", "frame of 0 bytes has no room for its command's size"),
        ("00000008 00000005", "command of 5 bytes reaches past its frame of 8 bytes"),
        ("00000008 ffffffff", "command of 4294967295 bytes reaches past its frame of 8 bytes"),
        ("47455420", "frame of 1195725860 bytes is larger than the limit 5253120"),
    ],
)
def test_an_invalid_frame_is_refused_before_it_is_complete(data: str, reason: str) -> None:
    with pytest.raises(ProtocolError) as caught:
        split(bytes.fromhex(data))
    assert caught.value.reason == str(caught.value) == reason
    assert isinstance(caught.value, LithifyError)


def test_the_limit_is_on_the_whole_frame() -> None:
    data = send(entry())
    assert split(data, limit_bytes=len(data))[1] == len(data)
    with pytest.raises(ProtocolError, match="larger than the limit"):
        split(data, limit_bytes=len(data) - 1)


def test_the_largest_message_passes_with_the_margin() -> None:
    data = send(entry(bytes(1000)))
    assert len(split(data, limit_bytes=1000 + FRAME_MARGIN_BYTES)[0]) == 1


def test_good_frames_before_a_bad_one_come_out_first() -> None:
    good = encode_command(PING)
    data = good + good + bytes(4)
    frames, consumed = split(data)
    assert len(frames) == 2
    assert consumed == 2 * len(good)
    with pytest.raises(ProtocolError, match="no room"):
        split(data[consumed:])


def test_an_empty_command_is_a_frame() -> None:
    found = next_frame(memoryview(bytes.fromhex("00000004 00000000 ff")), LIMIT_BYTES)
    assert found is not None
    frame, size = found
    assert (bytes(frame.command), frame.entry, size) == (b"", None, 8)


def test_invalid_utf8_is_refused_in_any_field() -> None:
    command = wire.BaseCommand(type=wire.BaseCommand.PRODUCER)
    command.producer.topic = "orders"
    command.producer.producer_id = command.producer.request_id = 1
    command.producer.metadata.add(key="first", value="caf\u00e9")
    command.producer.metadata.add(key="second", value="@@")
    check_text(command)
    for place in (b"orders", b"@@"):
        data = command.SerializeToString().replace(place, b"\xff" * len(place))
        with pytest.raises(ProtocolError, match="is not text"):
            check_text(wire.BaseCommand.FromString(data))


def test_message_ids_inside_message_ids_are_no_text() -> None:
    command = wire.BaseCommand(type=wire.BaseCommand.ACK)
    command.ack.consumer_id = 1
    command.ack.ack_type = wire.CommandAck.Individual
    command.ack.message_id.add(ledgerId=1, entryId=2).first_chunk_message_id.ledgerId = 1
    check_text(command)
