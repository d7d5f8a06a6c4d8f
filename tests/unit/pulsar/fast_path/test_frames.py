"""The compiled paths, case by case: what is read, what is refused, what is left to protobuf."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from lithify.checksum import crc32c
from lithify.errors import InvalidInput
from lithify.log.segments.frame_batch import LARGE_BYTES
from lithify.positions import pack
from lithify.pulsar.fast_path import frames as fast
from lithify.pulsar.wire import wire_pb2 as wire
from lithify.pulsar.wire.framing import encode_command, encode_payload
from lithify.topics.messages.message_pb2 import LZ4, EncryptionKeys, KeyValue, SingleMessageMetadata
from tests.unit.pulsar.frames import (
    LIMIT_BYTES,
    array,
    batch,
    entry,
    entry_of,
    framed,
    metadata,
    send,
    split_frames,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

PING = encode_command(wire.BaseCommand(type=wire.BaseCommand.PING, ping=wire.CommandPing()))


def scan(data: bytes, limit_bytes: int = LIMIT_BYTES) -> fast.Sends:
    return fast.scan_sends(array(data), 0, len(data), limit_bytes)


def flags_of(data: bytes) -> int:
    sends = scan(send(data))
    assert len(sends) == 1
    return int(sends.flags[0])


def test_a_plain_send_is_read() -> None:
    data = entry(b"hello")
    frame = send(data, producer_id=9, sequence_id=300)
    sends = scan(frame)
    assert (len(sends), sends.stop, sends.why) == (1, len(frame), fast.END)
    assert sends.producer_ids.tolist() == [9]
    assert sends.sequence_ids.tolist() == [300]
    assert sends.num_messages.tolist() == [1]
    assert sends.highest_sequence_ids.tolist() == [0]
    assert frame[sends.entry_starts[0] : sends.entry_stops[0]] == data
    assert frame[sends.payload_starts[0] : sends.entry_stops[0]] == b"hello"
    assert sends.crcs.tolist() == [fast.GOOD_CRC]
    assert sends.flags.tolist() == [0]
    assert sends.publish_times_ms.tolist() == [1_700_000_000_000]
    assert sends.metadata_sequence_ids.tolist() == [7]
    assert sends.nums_in_batch.tolist() == [1]


def test_a_run_of_sends_is_read_from_where_it_begins() -> None:
    run = b"".join(send(entry(), sequence_id=i) for i in range(10))
    data = array(b"???" + run + b"???")
    sends = fast.scan_sends(data, 3, 3 + len(run), LIMIT_BYTES)
    assert sends.sequence_ids.tolist() == list(range(10))
    assert sends.frame_starts.tolist() == [3, *sends.entry_stops[:-1].tolist()]
    assert sends.stop == 3 + len(run)


def test_every_queried_field_of_the_metadata_is_read() -> None:
    keys = EncryptionKeys(key="k", value=b"v", metadata=[KeyValue(key="a", value="b")])
    assert flags_of(entry()) == 0
    assert flags_of(entry(partition_key="k")) == fast.KEYED
    assert flags_of(entry(marker_type=20)) == fast.MARKER
    assert flags_of(entry(deliver_at_time=5)) == fast.DELAYED
    assert flags_of(entry(encryption_keys=[keys])) == fast.ENCRYPTED
    assert flags_of(entry(null_value=True)) == fast.NULL_VALUE
    assert flags_of(entry(null_value=False)) == 0
    assert flags_of(entry(chunk_id=0)) == fast.CHUNK_ID
    assert flags_of(entry(properties=[KeyValue(key="a", value="b")], event_time=4)) == 0
    sends = scan(send(entry(compression=LZ4, uncompressed_size=99, deliver_at_time=-5)))
    assert sends.compressions.tolist() == [LZ4]
    assert sends.uncompressed_bytes.tolist() == [99]
    assert sends.deliver_at_times_ms.tolist() == [-5]


def test_batch_and_chunk_fields_of_the_command_are_read() -> None:
    sends = scan(send(entry(), num_messages=5, highest_sequence_id=11, is_chunk=True))
    assert sends.num_messages.tolist() == [5]
    assert sends.highest_sequence_ids.tolist() == [11]
    assert sends.flags.tolist() == [fast.CHUNK]


def test_ids_of_minus_one_read_as_that() -> None:
    sends = scan(send(entry(), producer_id=2**64 - 1, sequence_id=2**63, num_messages=-1))
    assert sends.producer_ids.tolist() == [-1]
    assert sends.sequence_ids.tolist() == [-(2**63)]
    assert sends.num_messages.tolist() == [-1]


@pytest.mark.parametrize(
    "fields",
    [
        {"txnid_least_bits": 1},
        {"txnid_most_bits": 0},
        {"marker": True},
        {"message_id": wire.MessageIdData(ledgerId=1, entryId=2)},
    ],
)
def test_unusual_commands_are_flagged_for_protobuf(fields: dict[str, object]) -> None:
    assert scan(send(entry(), **fields)).flags.tolist() == [fast.UNUSUAL]


def test_unusual_metadata_is_flagged_for_protobuf() -> None:
    assert flags_of(entry(txnid_least_bits=0)) == fast.UNUSUAL
    assert flags_of(entry(txnid_most_bits=1)) == fast.UNUSUAL
    assert flags_of(entry(compacted_batch_indexes=[1])) == fast.UNUSUAL
    packed = metadata().SerializeToString() + bytes([0xFA, 0x01, 1, 5])
    assert flags_of(entry_of(packed, b"")) == fast.UNUSUAL
    unknown = metadata().SerializeToString() + bytes([8 << 3, 9])
    assert flags_of(entry_of(unknown, b"")) == fast.UNUSUAL


def test_crcs_are_missing_good_or_bad() -> None:
    bad = bytearray(send(entry(b"hello")))
    bad[-1] ^= 1
    sends = scan(send(entry(crc=False)) + send(entry()) + bad + send(entry(crc=False)))
    assert sends.crcs.tolist() == [
        fast.NO_CRC,
        fast.GOOD_CRC,
        fast.BAD_CRC,
        fast.NO_CRC,
    ]
    assert sends.flags.tolist() == [0, 0, 0, 0]
    assert sends.publish_times_ms[2] == 0, "what a bad CRC covers was not read"


def test_sends_are_plain_if_nothing_sets_one_apart() -> None:
    bad = bytearray(send(entry(b"hello")))
    bad[-1] ^= 1
    one, other = send(entry(), producer_id=3), send(entry(), producer_id=4)
    assert scan(one + one).plain
    assert scan(one + one + PING).plain
    for odd in (other, bytes(bad), send(b"no entry"), send(entry(txnid_least_bits=1))):
        assert not scan(one + odd).plain
        assert not scan(one + odd + one).plain


def test_the_crc_of_a_large_entry_is_known_after_the_scan_and_of_no_other() -> None:
    large = entry(bytes(LARGE_BYTES))
    frames = send(large) + send(entry(b"small")) + send(entry(bytes(LARGE_BYTES), crc=False))
    bad = bytearray(send(large))
    bad[-1] ^= 1
    assert scan(frames + bytes(bad)).entry_crcs.tolist() == [crc32c(large), -1, -1, -1]


GOOD = metadata().SerializeToString()
SEND = bytes([0x08, 0x06, 0x32, 0x04, 0x08, 0x03, 0x10, 0x07])


@pytest.mark.parametrize(
    "data",
    [
        b"\x00",
        b"\x0e\x01\x00\x00\x00",
        b"\x00\x00\x00\xff" + GOOD,
        b"\x0e\x02\x00\x00\x00\x00" + entry(),
        entry_of(b"", b""),
        entry_of(GOOD[:-1], b""),
        entry_of(GOOD[3:], b""),
        entry_of(GOOD + b"\x00\x00", b""),
        entry_of(GOOD + b"\x1b\x1c", b""),
        entry_of(GOOD + b"\x32\xff\xff\xff\xff\x0f", b""),
        entry_of(GOOD + b"\x18" + b"\xff" * 10, b""),
        entry_of(GOOD + b"\xff\xff\xff\xff\xff\x01\x01", b""),
        entry_of(GOOD + b"\x22\x03\x0a\x01k", b""),
        entry_of(GOOD + b"\x22\x07\x0a\x01k\x12\x09vv", b""),
        entry_of(GOOD + b"\x6a\x0b\x0a\x01k\x12\x01v\x1a\x03\x0a\x01k", b""),
        entry_of(GOOD + b"\x39short", b""),
    ],
    ids=[
        "no size",
        "no room for a crc",
        "size past the end",
        "broker metadata",
        "empty",
        "cut",
        "no producer name",
        "field zero",
        "a group",
        "length past the end",
        "endless number",
        "endless tag",
        "property without a value",
        "property past its end",
        "encryption key with half a property",
        "fixed number past the end",
    ],
)
def test_malformed_metadata_is_flagged(data: bytes) -> None:
    neighbour = send(entry(), sequence_id=8)
    sends = scan(send(data) + neighbour)
    assert sends.flags.tolist() == [fast.BAD_METADATA, 0]
    assert sends.payload_starts[0] <= sends.entry_stops[0]


def test_unknown_fields_are_stepped_over() -> None:
    unknown = (
        bytes([40 << 3 & 0xFF | 0x80, 2, 5]) + b"\x3d1234" + b"\x3987654321" + b"\x9a\x3f\x02ab"
    )
    assert flags_of(entry_of(unknown + GOOD + unknown, b"x")) == 0


def test_the_last_of_several_values_counts() -> None:
    more = metadata(publish_time=5, null_value=False).SerializeToString()
    sends = scan(send(entry_of(metadata(null_value=True).SerializeToString() + more, b"")))
    assert sends.publish_times_ms.tolist() == [5]
    assert sends.flags.tolist() == [0]


def test_only_the_lower_half_of_a_number_too_large_for_its_field_counts() -> None:
    one = b"\x81\x80\x80\x80\x10"  # 2^32 + 1
    head = GOOD + bytes([9 << 3]) + one + bytes([11 << 3]) + one
    frame = framed(b"\x08\x06\x32\x0a" + SEND[4:] + b"\x18" + one, entry_of(head, batch([b"a"])))
    sends = scan(frame)
    assert sends.flags.tolist() == [fast.BATCH]
    assert sends.num_messages.tolist() == [1]
    assert sends.nums_in_batch.tolist() == [1]
    assert sends.uncompressed_bytes.tolist() == [1]


def test_a_scan_stops_at_the_first_frame_that_is_no_send() -> None:
    first = send(entry())
    sends = scan(first + PING + first)
    assert (len(sends), sends.stop, sends.why) == (1, len(first), fast.NOT_A_SEND)


@pytest.mark.parametrize(
    "frame",
    [
        framed(SEND, b""),
        framed(SEND + b"\x12\x00", entry()),
        framed(SEND[:3] + b"\x02" + SEND[4:6], entry()),
        framed(SEND[:3] + b"\x05" + SEND[4:], entry()),
        framed(SEND[:7], entry()),
        framed(SEND[:3], entry()),
        framed(SEND[:2], entry()),
        framed(b"", entry()),
        framed(b"\x08\x86\x00" + SEND[2:], entry()),
        bytes.fromhex("00000003 00000000"),
        bytes.fromhex("00000008 00000005") + SEND,
    ],
    ids=[
        "no entry",
        "a second command",
        "no sequence id",
        "longer than the command",
        "shorter than it says",
        "no length",
        "nothing but a type",
        "no command",
        "a long type",
        "no room for a command",
        "command past the frame",
    ],
)
def test_a_send_of_another_shape_is_left_to_protobuf(frame: bytes) -> None:
    sends = scan(frame)
    assert (len(sends), sends.stop, sends.why) == (0, 0, fast.NOT_A_SEND)


def test_the_shape_those_are_not_of_is_read() -> None:
    assert len(scan(framed(SEND, entry()))) == 1


def test_an_incomplete_frame_is_waited_for() -> None:
    first = send(entry())
    for size in range(1, len(first)):
        sends = scan(first + first[:size])
        assert (len(sends), sends.stop, sends.why) == (1, len(first), fast.NEED_MORE)
        sends = scan(PING[: min(size, len(PING) - 1)])
        assert sends.why == fast.NEED_MORE


def test_a_frame_over_the_limit_is_not_waited_for() -> None:
    frame = send(entry())
    assert scan(frame, len(frame)).why == fast.END
    assert scan(frame, len(frame) - 1).why == fast.OVER_LIMIT
    assert scan(frame[:4], len(frame) - 1).why == fast.OVER_LIMIT


def test_a_scan_without_free_rows_returns_where_to_continue() -> None:
    frame = send(entry())
    data = array(frame * (fast.SENDS_MAX + 1))
    sends = fast.scan_sends(data, 0, data.size, LIMIT_BYTES)
    assert (len(sends), sends.why) == (fast.SENDS_MAX, fast.FULL)
    sends = fast.scan_sends(data, sends.stop, data.size, LIMIT_BYTES)
    assert (len(sends), sends.why) == (1, fast.END)


def test_the_smallest_frames_fit_the_rows() -> None:
    frames = framed(SEND, b"\x00") * 5
    sends = scan(frames)
    assert (len(sends), sends.why) == (5, fast.END)


@pytest.mark.parametrize(("start", "stop"), [(-1, 4), (0, 11), (5, 4)])
def test_a_range_outside_the_array_is_refused(start: int, stop: int) -> None:
    with pytest.raises(InvalidInput, match="not inside an array of 10 bytes"):
        fast.scan_sends(array(bytes(10)), start, stop, LIMIT_BYTES)
    with pytest.raises(InvalidInput, match="not inside an array of 10 bytes"):
        fast.check_batch(array(bytes(10)), start, stop, 1)


def batch_ok(payload: bytes, count: int) -> bool:
    return fast.check_batch(array(payload), 0, len(payload), count)


def test_the_count_of_a_batch_is_checked() -> None:
    payload = batch([b"one", b"", b"three"])
    assert batch_ok(payload, 3)
    for count in (-1, 0, 1, 2, 4, 2**31 - 1):
        assert not batch_ok(payload, count)
    for size in range(len(payload)):
        assert not batch_ok(payload[:size], 3)
    assert not batch_ok(payload + b"\x00", 3)


def single(**fields: object) -> bytes:
    head: bytes = SingleMessageMetadata(**fields).SerializePartialToString()  # type: ignore[arg-type]
    return len(head).to_bytes(4, "big") + head


def test_a_single_message_must_be_well_formed() -> None:
    pair = KeyValue(key="a", value="b")
    assert batch_ok(single(payload_size=1, properties=[pair], partition_key="k") + b"x", 1)
    assert not batch_ok(single(payload_size=-1), 1)
    assert not batch_ok(single(payload_size=2) + b"x", 1)
    assert not batch_ok(single(partition_key="k"), 1)
    assert not batch_ok(single(payload_size=0, properties=[KeyValue(key="a")]), 1)
    assert not batch_ok(b"\x00\x00\x00\x01\x18", 1)
    assert not batch_ok(b"\xff\xff\xff\xff\x18\x00", 1)


def test_a_size_missing_after_one_that_was_there_is_missing() -> None:
    assert not batch_ok(single(payload_size=0) + single(partition_key="k"), 2)


def test_a_batch_that_would_crash_its_consumers_is_flagged() -> None:
    payload = batch([b"one", b"two"])
    assert flags_of(entry(payload, num_messages_in_batch=2)) == fast.BATCH
    bad = fast.BATCH | fast.BAD_BATCH
    assert flags_of(entry(payload, num_messages_in_batch=3)) == bad
    assert flags_of(entry(payload, num_messages_in_batch=1)) == bad
    assert flags_of(entry(b"", num_messages_in_batch=0)) == bad
    assert flags_of(entry(payload, num_messages_in_batch=-1, compression=LZ4)) == bad


def test_an_undecodable_batch_is_accepted_if_its_count_is_possible() -> None:
    key = EncryptionKeys(key="k", value=b"v")
    secret: dict[str, Any] = {"num_messages_in_batch": 3, "encryption_keys": [key]}
    assert flags_of(entry(bytes(18), **secret)) == fast.BATCH | fast.ENCRYPTED
    assert flags_of(entry(bytes(17), **secret)) == fast.BATCH | fast.ENCRYPTED | fast.BAD_BATCH
    packed: dict[str, Any] = {"num_messages_in_batch": 3, "compression": LZ4}
    assert flags_of(entry(b"packed", uncompressed_size=18, **packed)) == fast.BATCH
    assert flags_of(entry(b"packed", uncompressed_size=17, **packed)) == fast.BATCH | fast.BAD_BATCH
    assert flags_of(entry(b"packed", **packed)) == fast.BATCH | fast.BAD_BATCH


def test_a_batch_that_claims_less_than_nothing_does_not_end_the_scan() -> None:
    bad = send(entry(b"", num_messages_in_batch=-1, compression=LZ4))
    other = send(entry(b"", num_messages_in_batch=1))
    sends = scan(bad + other + other)
    assert (len(sends), sends.why) == (3, fast.END)


def longs(values: Iterable[int]) -> NDArray[np.int64]:
    return np.array(list(values), dtype=np.int64)


def commands(data: bytes) -> list[tuple[wire.BaseCommand, bytes | None]]:
    frames, consumed = split_frames(memoryview(data), 2**32)
    assert consumed == len(data)
    return [
        (wire.BaseCommand.FromString(f.command), None if f.entry is None else bytes(f.entry))
        for f in frames
    ]


def test_receipts_of_a_run_count_its_entries_up() -> None:
    out = np.zeros(3 * fast.RECEIPT_BYTES_MAX, dtype=np.uint8)
    size = fast.write_receipts(out, longs([1, 2, 1]), longs([5, 0, 300]), longs([0, 9, 0]), 4, 127)
    receipts = [command.send_receipt for command, _ in commands(out[:size].tobytes())]
    assert [r.producer_id for r in receipts] == [1, 2, 1]
    assert [r.sequence_id for r in receipts] == [5, 0, 300]
    assert [r.highest_sequence_id for r in receipts] == [0, 9, 0]
    assert [(r.message_id.ledgerId, r.message_id.entryId) for r in receipts] == [
        (4, 127),
        (4, 128),
        (4, 129),
    ]
    assert not out[size:].any()


def test_receipts_of_the_largest_numbers_fit() -> None:
    out = np.zeros(fast.RECEIPT_BYTES_MAX, dtype=np.uint8)
    size = fast.write_receipts(out, longs([-1]), longs([-1]), longs([-1]), -1, -1)
    ((command, _),) = commands(out[:size].tobytes())
    assert command.send_receipt.message_id.entryId == 2**64 - 1
    assert command.send_receipt.highest_sequence_id == 2**64 - 1


def test_receipts_need_room_and_equal_columns() -> None:
    two, one = longs([1, 2]), longs([1])
    out = np.zeros(2 * fast.RECEIPT_BYTES_MAX, dtype=np.uint8)
    with pytest.raises(InvalidInput, match="need room for 144 bytes, there are 143"):
        fast.write_receipts(out[:-1], two, two, two, 0, 0)
    for columns in ((two, one, two), (two, two, one), (one, two, two)):
        with pytest.raises(InvalidInput, match="as many"):
            fast.write_receipts(out, *columns, 0, 0)


def test_a_header_omits_default_fields() -> None:
    header = fast.message_header(3, 4, 5, -1, 0, (), 2, None)
    ((command, data),) = commands(header + b"ab")
    message = command.message
    assert data == b"ab"
    assert (message.consumer_id, message.message_id.ledgerId, message.message_id.entryId) == (
        3,
        4,
        5,
    )
    assert [field.name for field, _ in message.ListFields()] == ["consumer_id", "message_id"]
    assert [field.name for field, _ in message.message_id.ListFields()] == ["ledgerId", "entryId"]


def test_a_header_is_what_the_generated_code_makes() -> None:
    header = fast.message_header(3, 4, 5, 6, 7, (-1, 5), 9, 0)
    identity = wire.MessageIdData(ledgerId=4, entryId=5, partition=6)
    message = wire.CommandMessage(
        consumer_id=3, message_id=identity, redelivery_count=7, ack_set=[-1, 5], consumer_epoch=0
    )
    command = wire.BaseCommand(type=wire.BaseCommand.MESSAGE, message=message)
    assert header == encode_payload(command, b"nine byte")[0]


def entries(
    *bodies: bytes,
) -> tuple[NDArray[np.uint8], NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Bodies with a gap of three bytes before each, and their offsets, lengths and positions."""
    lengths = longs(map(len, bodies))
    offsets = np.cumsum(lengths + 3) - lengths
    positions = longs(pack(7, 1000 * i) for i in range(len(bodies)))
    return array(b"".join(b"gap" + body for body in bodies)), offsets, lengths, positions


def test_messages_are_written_side_by_side() -> None:
    bodies = [entry(b"one"), b"", entry(bytes(3000))]
    out = np.zeros(10_000, dtype=np.uint8)
    size, count = fast.write_messages(out, *entries(*bodies), 3, -1)
    assert count == 3
    expected = [
        fast.message_header(3, 7, 1000 * i, -1, 0, (), len(body), None) + body
        for i, body in enumerate(bodies)
    ]
    assert out[:size].tobytes() == b"".join(expected)
    assert not out[size:].any()


def test_messages_that_do_not_fit_are_left_for_the_next_send() -> None:
    bodies = [b"1" * 100, b"2" * 100]
    for room, expected in ((0, 0), (195, 0), (196, 1), (290, 1), (400, 2)):
        out = np.zeros(room, dtype=np.uint8)
        size, count = fast.write_messages(out, *entries(*bodies), 3, 5)
        assert count == expected
        assert len(commands(out[:size].tobytes())) == expected


@pytest.mark.parametrize(("offset", "length"), [(-1, 2), (0, 14), (14, 0), (3, -1), (2**63 - 1, 5)])
def test_messages_from_outside_the_array_are_refused(offset: int, length: int) -> None:
    data, _, _, positions = entries(b"0123456789")
    out = np.zeros(500, dtype=np.uint8)
    with pytest.raises(InvalidInput, match=f"entry at {offset} of {length} bytes is not inside"):
        fast.write_messages(out, data, longs([offset]), longs([length]), positions, 1, -1)
    with pytest.raises(InvalidInput, match="as many offsets"):
        fast.write_messages(out, data, longs([0]), longs([1, 2]), positions, 1, -1)
