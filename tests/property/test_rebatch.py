"""Batches made smaller, again and again, are what is left of them, in every form they go out in."""

from __future__ import annotations

from dataclasses import dataclass, replace

from hypothesis import given
from hypothesis import strategies as st

from lithify.errors import InvalidInput
from lithify.log.segments.frame import LogEntry
from lithify.positions import pack
from lithify.topics.messages.message import (
    FLAG_SHRUNK,
    Message,
    broker_metadata_bytes,
    compress,
    decode_entry,
    decompress,
    encode_entry,
    parse_entry,
)
from lithify.topics.messages.message_pb2 import (
    LZ4,
    NONE,
    SNAPPY,
    ZLIB,
    ZSTD,
    KeyValue,
    MessageMetadata,
    SingleMessageMetadata,
)
from lithify.topics.subscriptions.compacted_batch import BatchForm, WireBatch, to_wire
from tests.unit.topics.segments import shrink

POSITION = pack(3, 4)
OTHER_BROKER = b"\x0e\x02\0\0\0\x02\x08\x07"
UNKNOWN_FIELD = b"\xc2\x3e\x03new"  # number 1000, three bytes


@dataclass(frozen=True)
class Batch:
    """An entry as a producer sent it, and which of its slots have a message."""

    body: bytes
    slots: int
    present: tuple[int, ...]


@st.composite
def singles(draw: st.DrawFn) -> bytes:
    value = draw(st.binary(max_size=40))
    single = SingleMessageMetadata(payload_size=len(value))
    if draw(st.booleans()):
        single.partition_key = draw(st.text(max_size=6))
    if draw(st.booleans()):
        single.event_time = draw(st.integers(0, 2**63))
        single.sequence_id = draw(st.integers(0, 2**63))
    if not value:
        single.null_value = draw(st.booleans())
    for _ in range(draw(st.integers(0, 2))):
        single.properties.append(KeyValue(key=draw(st.text(max_size=3)), value="v"))
    return framed(single, value)


def framed(single: SingleMessageMetadata, value: bytes) -> bytes:
    head = single.SerializeToString()
    return b"".join((len(head).to_bytes(4, "big"), head, value))


PLACEHOLDER = framed(SingleMessageMetadata(payload_size=0, compacted_out=True), b"")


@st.composite
def batches(draw: st.DrawFn) -> Batch:
    rows = draw(st.lists(singles(), min_size=1, max_size=12)) * draw(st.sampled_from([1, 1, 12]))
    most = draw(st.sampled_from([0, len(rows) - 1]))
    gone = draw(st.sets(st.integers(0, len(rows) - 1), max_size=most))
    plain = b"".join(PLACEHOLDER if slot in gone else row for slot, row in enumerate(rows))
    codec = draw(st.sampled_from([NONE, LZ4, ZLIB, ZSTD, SNAPPY]))
    metadata = MessageMetadata(
        producer_name="p", sequence_id=7, publish_time=1000, num_messages_in_batch=len(rows)
    )
    if codec:
        metadata.compression = codec
    if codec or draw(st.booleans()):
        metadata.uncompressed_size = len(plain)
    if draw(st.booleans()):
        metadata.partition_key = draw(st.text(max_size=6))
        metadata.properties.append(KeyValue(key="k", value=draw(st.text(max_size=6))))
        metadata.schema_version = draw(st.binary(max_size=8))
        metadata.highest_sequence_id = draw(st.integers(0, 2**64 - 1))
    listed = draw(st.booleans())
    if gone and listed:
        metadata.compacted_batch_indexes.extend(set(range(len(rows))) - gone)
    if draw(st.booleans()):
        metadata.MergeFromString(UNKNOWN_FIELD)
    body = encode_entry(metadata, compress(codec, plain))
    if draw(st.booleans()):
        body = body[6:]  # a CRC is optional
    if draw(st.booleans()):
        body = OTHER_BROKER + body
    return Batch(body, len(rows), tuple(slot for slot in range(len(rows)) if slot not in gone))


def messages(body: bytes, flags: int = 0, live: int | None = None) -> list[Message]:
    return list(decode_entry(LogEntry(POSITION, 1000, body, flags, live=live)))


def mask_of(slots: tuple[int, ...] | list[int]) -> int:
    return sum(1 << slot for slot in slots)


def others_of(body: bytes) -> bytes:
    """All metadata that making a batch smaller must not touch."""
    metadata, _ = parse_entry(body)
    metadata.ClearField("uncompressed_size")
    metadata.ClearField("compacted_batch_indexes")
    return bytes(metadata.SerializeToString(deterministic=True))


def some_of(data: st.DataObject, slots: tuple[int, ...]) -> tuple[int, ...]:
    chosen = data.draw(st.sets(st.sampled_from(slots), min_size=1))
    return tuple(sorted(chosen))


@given(batches(), st.data())
def test_a_batch_can_be_shrunk_repeatedly(batch: Batch, data: st.DataObject) -> None:
    original = messages(batch.body)
    assert tuple(message.id.batch_index for message in original) == batch.present
    body, left, shrunk = batch.body, batch.present, False
    for _ in range(data.draw(st.integers(1, 3))):
        left = some_of(data, left)
        body = shrink(body, mask_of(left), shrunk=shrunk)
        shrunk = True
        expected = [message for message in original if message.id.batch_index in left]
        assert messages(body, FLAG_SHRUNK) == expected
        metadata, payload = parse_entry(body)
        assert tuple(metadata.compacted_batch_indexes) == left
        assert metadata.num_messages_in_batch == batch.slots
        plain = decompress(metadata, payload)
        if metadata.HasField("uncompressed_size"):
            assert metadata.uncompressed_size == len(plain)
        assert others_of(body) == others_of(batch.body)
        before = broker_metadata_bytes(batch.body)
        assert body[:before] == batch.body[:before]
        assert (body[before:][:2] == b"\x0e\x01") == (batch.body[before:][:2] == b"\x0e\x01")


def as_client(sent: WireBatch) -> list[tuple[int, bytes]]:
    """(batch index, bytes) of each message that a client delivers.

    It reads as many as there should be, whatever is there, and skips those that are masked.
    """
    metadata, payload = parse_entry(sent.body)
    plain = bytes(decompress(metadata, payload))
    assert metadata.num_messages_in_batch == sent.messages
    delivered, at = [], 0
    for index in range(metadata.num_messages_in_batch):
        begin = at + 4 + int.from_bytes(plain[at : at + 4], "big")
        single = SingleMessageMetadata.FromString(plain[at + 4 : begin])
        at = begin + single.payload_size
        if sent.ack_set is None or sent.ack_set >> index & 1:
            assert not single.compacted_out
            delivered.append((index, plain[begin:at]))
    assert at == len(plain)
    return delivered


@given(batches(), st.data())
def test_live_and_unacknowledged_messages_are_sent(batch: Batch, data: st.DataObject) -> None:
    left = some_of(data, batch.present)
    entry = LogEntry(POSITION, 1000, batch.body, tag=batch.slots, live=mask_of(left))
    if data.draw(st.booleans()):
        stored = some_of(data, batch.present)
        left = tuple(slot for slot in left if slot in stored) or stored[:1]
        body = shrink(batch.body, mask_of(stored), shrunk=False)
        entry = replace(entry, body=body, flags=FLAG_SHRUNK, live=mask_of(left))
    remaining = some_of(data, left)
    values = {message.id.batch_index: message.value or b"" for message in messages(batch.body)}
    expected = [(slot, values[slot]) for slot in remaining]
    for form in (BatchForm.STORED, BatchForm.SLOTS):
        sent = to_wire(entry, mask_of(remaining), form)
        assert as_client(sent) == expected
        # All of the delivered ones are acknowledged: what the client never saw does not count.
        unseen = ((1 << sent.messages) - 1) & ~mask_of(remaining)
        assert sent.left_of(unseen) == 0
        assert sent.left_of((1 << sent.messages) - 1) == mask_of(remaining)
    assert sent.messages == remaining[-1] + 1
    assert (sent.ack_set is None) == (remaining == tuple(range(len(remaining))))
    packed = to_wire(entry, mask_of(remaining), BatchForm.PACKED)
    assert packed.ack_set is None
    assert as_client(packed) == list(enumerate(value for _, value in expected))
    assert packed.left_of(1) == 1 << remaining[0]
    assert packed.left_of((1 << packed.messages) - 1) == mask_of(remaining)
    assert all(rank <= slot for rank, slot in enumerate(remaining))
    assert others_without_count(packed.body) == others_without_count(batch.body)


def others_without_count(body: bytes | bytearray | memoryview) -> bytes:
    metadata = MessageMetadata.FromString(others_of(bytes(body)))
    metadata.ClearField("num_messages_in_batch")
    return bytes(metadata.SerializeToString(deterministic=True))


@given(batches(), st.integers(0, 400), st.integers(1, 255))
def test_no_damage_makes_a_batch_of_something_else(batch: Batch, at: int, flip: int) -> None:
    """Whatever the bytes are, the answer is an error or a batch that can be read."""
    body = bytearray(batch.body)
    body[at % len(body)] ^= flip
    try:
        made = shrink(body, 1, shrunk=False)
    except InvalidInput:
        return
    assert [message.id.batch_index for message in messages(made, FLAG_SHRUNK)] == [0]
