"""The compiled paths and the generated code say the same, and no bytes lead the former astray."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from lithify.errors import ProtocolError
from lithify.positions import pack
from lithify.pulsar.fast_path import frames as fast
from lithify.pulsar.wire import wire_pb2 as wire
from lithify.pulsar.wire.framing import encode_command, encode_payload, next_frame
from lithify.topics.messages.message_pb2 import (
    LZ4,
    SNAPPY,
    ZLIB,
    ZSTD,
    EncryptionKeys,
    KeyValue,
    MessageMetadata,
    SingleMessageMetadata,
)
from tests.unit.pulsar.frames import LIMIT_BYTES, array, batch, entry_of, framed, split_frames

if TYPE_CHECKING:
    from collections.abc import Callable

U32 = st.integers(0, 2**32 - 1)
U64 = st.integers(0, 2**64 - 1) | st.integers(0, 300)
I32 = st.integers(-(2**31), 2**31 - 1) | st.integers(0, 3)
I64 = st.integers(-(2**63), 2**63 - 1)
TEXT = st.text(max_size=5)
BYTES = st.binary(max_size=5)
PAIR = st.builds(KeyValue, key=TEXT, value=TEXT)
PAIRS = st.lists(PAIR, max_size=2)
MESSAGE_ID = st.builds(wire.MessageIdData, ledgerId=U64, entryId=U64)

COMMAND = {
    "num_messages": I32,
    "txnid_least_bits": U64,
    "txnid_most_bits": U64,
    "highest_sequence_id": U64,
    "is_chunk": st.booleans(),
    "marker": st.booleans(),
    "message_id": MESSAGE_ID,
}
METADATA = {
    "properties": PAIRS,
    "replicated_from": TEXT,
    "partition_key": TEXT,
    "replicate_to": st.lists(TEXT, max_size=2),
    "compression": st.integers(0, 4),
    "uncompressed_size": U32,
    "num_messages_in_batch": I32,
    "event_time": U64,
    "encryption_keys": st.lists(
        st.builds(EncryptionKeys, key=TEXT, value=BYTES, metadata=PAIRS), max_size=2
    ),
    "encryption_algo": TEXT,
    "encryption_param": BYTES,
    "schema_version": BYTES,
    "partition_key_b64_encoded": st.booleans(),
    "ordering_key": BYTES,
    "deliver_at_time": I64,
    "marker_type": I32,
    "txnid_least_bits": U64,
    "txnid_most_bits": U64,
    "highest_sequence_id": U64,
    "null_value": st.booleans(),
    "uuid": TEXT,
    "num_chunks_from_msg": I32,
    "total_chunk_msg_size": I32,
    "chunk_id": I32,
    "null_partition_key": st.booleans(),
    "compacted_batch_indexes": st.lists(I32, max_size=3),
    "schema_id": BYTES,
    "entry_hash_min": U32,
    "entry_hash_max": U32,
}


def shuffled(draw: st.DrawFn, fields: dict[str, Any], kind: Callable[..., Any]) -> bytes:
    """A message with its fields in any order, as the wire format allows and no generator does."""
    parts = [kind(**{name: value}).SerializePartialToString() for name, value in fields.items()]
    return b"".join(draw(st.permutations(parts)))


@st.composite
def commands(draw: st.DrawFn) -> bytes:
    required = {"producer_id": U64, "sequence_id": U64}
    fields = draw(st.fixed_dictionaries(required, optional=COMMAND))
    body = shuffled(draw, fields, wire.CommandSend)
    size = [len(body)] if len(body) < 128 else [len(body) & 127 | 128, len(body) >> 7]
    return bytes([0x08, wire.BaseCommand.SEND, 0x32, *size]) + body


@st.composite
def heads(draw: st.DrawFn) -> bytes:
    required = {"producer_name": TEXT, "sequence_id": U64, "publish_time": U64}
    fields = draw(st.fixed_dictionaries(required, optional=METADATA))
    return shuffled(draw, fields, MessageMetadata)


@st.composite
def frames(draw: st.DrawFn) -> bytes:
    payload = draw(st.binary(max_size=20) | st.lists(BYTES, max_size=3).map(batch))
    data = entry_of(draw(heads()), payload, crc=draw(st.booleans()))
    return framed(draw(commands()), data)


def signed(number: int) -> int:
    """What int64 makes of a uint64."""
    return number - 2**64 if number >= 2**63 else number


def same_command(sends: fast.Sends, row: int, command: wire.CommandSend) -> None:
    assert command.IsInitialized()
    assert sends.producer_ids[row] == signed(command.producer_id)
    assert sends.sequence_ids[row] == signed(command.sequence_id)
    assert sends.highest_sequence_ids[row] == signed(command.highest_sequence_id)
    assert sends.num_messages[row] == command.num_messages
    assert bool(sends.flags[row] & fast.CHUNK) == command.is_chunk


def same_metadata(sends: fast.Sends, row: int, metadata: MessageMetadata) -> None:
    assert metadata.IsInitialized()
    assert sends.publish_times_ms[row] == signed(metadata.publish_time)
    assert sends.metadata_sequence_ids[row] == signed(metadata.sequence_id)
    assert sends.nums_in_batch[row] == metadata.num_messages_in_batch
    assert sends.deliver_at_times_ms[row] == metadata.deliver_at_time
    assert sends.compressions[row] == metadata.compression
    assert sends.uncompressed_bytes[row] == metadata.uncompressed_size
    presence = {
        fast.BATCH: metadata.HasField("num_messages_in_batch"),
        fast.KEYED: metadata.HasField("partition_key"),
        fast.MARKER: metadata.HasField("marker_type"),
        fast.DELAYED: metadata.HasField("deliver_at_time"),
        fast.ENCRYPTED: bool(metadata.encryption_keys),
        fast.NULL_VALUE: metadata.null_value,
        fast.CHUNK_ID: metadata.HasField("chunk_id"),
    }
    for flag, present in presence.items():
        assert bool(sends.flags[row] & flag) == present, flag


def singles(payload: bytes, count: int) -> bool:
    """What `check_batch` says, by the generated code."""
    at = 0
    for _ in range(count):
        size = int.from_bytes(payload[at : at + 4], "big")
        if at + 4 + size > len(payload):
            return False
        try:
            single = SingleMessageMetadata.FromString(payload[at + 4 : at + 4 + size])
        except DecodeError:
            return False
        if not single.IsInitialized() or single.payload_size < 0:
            return False
        at += 4 + size + single.payload_size
    return count > 0 and at == len(payload)


def may_have(metadata: MessageMetadata, payload: bytes) -> bool:
    """May the payload of a batch have as many messages as it says?"""
    count = metadata.num_messages_in_batch
    if not 1 <= count <= 2**20:
        return False
    size = len(payload)
    if metadata.compression == 0:
        if not metadata.encryption_keys:
            return singles(payload, min(count, 100))
    else:
        ratio = {LZ4: 256, ZLIB: 1040, ZSTD: 2**16, SNAPPY: 32}[metadata.compression]
        if metadata.uncompressed_size > (size + 64) * ratio:
            return False
        size = metadata.uncompressed_size
    return 6 * count <= size <= 2**28


def unusual(command: wire.CommandSend, metadata: MessageMetadata) -> bool:
    strange = ("txnid_least_bits", "txnid_most_bits")
    return (
        any(command.HasField(name) for name in (*strange, "marker", "message_id"))
        or any(metadata.HasField(name) for name in strange)
        or bool(metadata.compacted_batch_indexes)
    )


@given(st.lists(frames(), min_size=1, max_size=4), st.integers(0, 3))
def test_the_scan_of_a_send_matches_protobuf(sent: list[bytes], start: int) -> None:
    data = bytes(start) + b"".join(sent)
    sends = fast.scan_sends(array(data), start, len(data), LIMIT_BYTES)
    assert (len(sends), sends.why, sends.stop) == (len(sent), fast.END, len(data))
    split, _ = split_frames(memoryview(data)[start:], LIMIT_BYTES)
    for row, frame in enumerate(split):
        assert frame.entry is not None
        assert data[sends.entry_starts[row] : sends.entry_stops[row]] == frame.entry
        command = wire.BaseCommand.FromString(frame.command).send
        same_command(sends, row, command)
        has_crc = bytes(frame.entry[:2]) == b"\x0e\x01"
        assert sends.crcs[row] == (fast.GOOD_CRC if has_crc else fast.NO_CRC)
        head = sends.entry_starts[row] + (10 if has_crc else 4)
        metadata = MessageMetadata.FromString(data[head : sends.payload_starts[row]])
        same_metadata(sends, row, metadata)
        assert not sends.flags[row] & fast.BAD_METADATA
        assert bool(sends.flags[row] & fast.UNUSUAL) == unusual(command, metadata)
        payload = data[sends.payload_starts[row] : sends.entry_stops[row]]
        assert bool(sends.flags[row] & fast.BAD_BATCH) == (
            metadata.HasField("num_messages_in_batch") and not may_have(metadata, payload)
        )


@st.composite
def mutations(draw: st.DrawFn) -> bytes:
    """Good frames with bytes overwritten, put in or taken out."""
    data = bytearray(b"".join(draw(st.lists(frames(), min_size=1, max_size=2))))
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, max(0, len(data) - 1)))
        data[at : at + draw(st.integers(0, 2))] = draw(st.binary(max_size=2))
    return bytes(data)


@given(mutations() | st.binary(max_size=60))
def test_the_scan_of_damaged_bytes_matches_protobuf(data: bytes) -> None:
    sends = fast.scan_sends(array(data), 0, len(data), LIMIT_BYTES)
    at = 0
    for row in range(len(sends)):
        found = next_frame(memoryview(data)[at:], LIMIT_BYTES)
        assert found is not None
        frame, size = found
        assert (sends.frame_starts[row], sends.entry_stops[row]) == (at, at + size)
        at += size
        if sends.flags[row] & fast.UNUSUAL:
            continue  # left to protobuf, which may find it malformed
        same_command(sends, row, wire.BaseCommand.FromString(frame.command).send)
        if sends.crcs[row] != fast.BAD_CRC and not sends.flags[row] & fast.BAD_METADATA:
            head = sends.entry_starts[row] + (10 if sends.crcs[row] == fast.GOOD_CRC else 4)
            metadata = MessageMetadata.FromString(data[head : sends.payload_starts[row]])
            same_metadata(sends, row, metadata)
    assert sends.stop == at
    try:
        rest = next_frame(memoryview(data)[at:], LIMIT_BYTES)
    except ProtocolError:
        assert sends.why in (fast.NOT_A_SEND, fast.OVER_LIMIT)
    else:
        nothing = fast.NEED_MORE if at < len(data) else fast.END
        assert sends.why == (nothing if rest is None else fast.NOT_A_SEND)


@given(mutations(), mutations())
def test_nothing_beyond_the_end_is_read(data: bytes, beyond: bytes) -> None:
    for stop in range(max(0, len(data) - 40), len(data) + 1):
        one, other = (
            fast.scan_sends(array(data[:stop] + more), 0, stop, LIMIT_BYTES)
            for more in (beyond, bytes(len(beyond)))
        )
        assert (one.stop, one.why) == (other.stop, other.why)
        assert np.array_equal(one.rows, other.rows)


@given(st.lists(st.builds(SingleMessageMetadata, payload_size=st.integers(0, 5))), st.data())
def test_a_spoilt_batch_is_good_only_if_protobuf_can_walk_it(
    heads_of: list[SingleMessageMetadata], data: st.DataObject
) -> None:
    payload = bytearray(
        b"".join(
            len(body).to_bytes(4, "big") + body + bytes(single.payload_size)
            for single in heads_of
            for body in [single.SerializeToString()]
        )
    )
    for _ in range(data.draw(st.integers(0, 2))):
        if payload:
            payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    count = len(heads_of) + data.draw(st.sampled_from((0, 0, 1, -1)))
    if fast.check_batch(array(bytes(payload)), 0, len(payload), count):
        assert singles(bytes(payload), count)


@given(st.lists(st.tuples(U64, U64, U64), max_size=5), st.integers(0, 2**31), U32)
def test_receipts_are_what_protobuf_writes(
    rows: list[tuple[int, int, int]], ledger: int, first_entry: int
) -> None:
    columns = np.array(rows, dtype=np.uint64).reshape(-1, 3).T.copy().view(np.int64)
    out = np.zeros(len(rows) * fast.RECEIPT_BYTES_MAX, dtype=np.uint8)
    size = fast.write_receipts(out, columns[0], columns[1], columns[2], ledger, first_entry)
    expected = b""
    for i, (producer, sequence, highest) in enumerate(rows):
        identity = wire.MessageIdData(ledgerId=ledger, entryId=first_entry + i)
        receipt = wire.CommandSendReceipt(
            producer_id=producer,
            sequence_id=sequence,
            message_id=identity,
            highest_sequence_id=highest,
        )
        expected += encode_command(
            wire.BaseCommand(type=wire.BaseCommand.SEND_RECEIPT, send_receipt=receipt)
        )
    assert out[:size].tobytes() == expected


@given(
    consumer=st.integers(0, 2**63 - 1),
    ledger=st.integers(0, 2**63 - 1),
    entry=st.integers(0, 2**63 - 1),
    partition=st.integers(-1, 2**31 - 1),
    redeliveries=U32,
    words=st.lists(I64, max_size=40),
    epoch=st.none() | st.integers(0, 2**63 - 1),
    data=st.binary(max_size=200),
)
def test_a_header_is_what_protobuf_writes(
    consumer: int,
    ledger: int,
    entry: int,
    partition: int,
    redeliveries: int,
    words: list[int],
    epoch: int | None,
    data: bytes,
) -> None:
    identity = wire.MessageIdData(ledgerId=ledger, entryId=entry)
    if partition >= 0:
        identity.partition = partition
    message = wire.CommandMessage(consumer_id=consumer, message_id=identity, ack_set=words)
    if redeliveries:
        message.redelivery_count = redeliveries
    if epoch is not None:
        message.consumer_epoch = epoch
    command = wire.BaseCommand(type=wire.BaseCommand.MESSAGE, message=message)
    header = fast.message_header(
        consumer, ledger, entry, partition, redeliveries, words, len(data), epoch
    )
    assert header == encode_payload(command, data)[0]


@given(
    st.lists(
        st.tuples(st.binary(max_size=300), st.integers(0, 2**31 - 1), U32), min_size=1, max_size=6
    ),
    st.integers(0, 2**63 - 1),
    st.integers(-1, 1000),
    st.integers(0, 1500),
)
def test_messages_are_headers_and_entries_as_far_as_there_is_room(
    rows: list[tuple[bytes, int, int]], consumer: int, partition: int, room: int
) -> None:
    lengths = np.array([len(body) for body, _, _ in rows], dtype=np.int64)
    positions = np.array([pack(ledger, number) for _, ledger, number in rows], dtype=np.int64)
    out = np.zeros(room, dtype=np.uint8)
    size, count = fast.write_messages(
        out,
        array(b"".join(body for body, _, _ in rows)),
        np.cumsum(lengths) - lengths,
        lengths,
        positions,
        consumer,
        partition,
    )
    expected = b"".join(
        fast.message_header(consumer, ledger, number, partition, 0, (), len(body), None) + body
        for body, ledger, number in rows[:count]
    )
    assert out[:size].tobytes() == expected
    assert not out[size:].any()
    if count < len(rows):
        assert size + fast.MESSAGE_HEADER_BYTES_MAX + lengths[count] > room
