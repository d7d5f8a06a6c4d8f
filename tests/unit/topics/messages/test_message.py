"""The format of messages in an entry."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

import cramjam
import pytest

from lithify.errors import InvalidInput
from lithify.log.segments.frame import LogEntry
from lithify.positions import pack
from lithify.topics.messages.message import (
    FLAG_SHRUNK,
    MessageId,
    compress,
    decode_entry,
    encode_entry,
    metadata_of,
    parse_entry,
)
from lithify.topics.messages.message_pb2 import (
    LZ4,
    NONE,
    SNAPPY,
    ZLIB,
    ZSTD,
    MessageMetadata,
    SingleMessageMetadata,
)

if TYPE_CHECKING:
    from collections.abc import Callable

COMPRESS: dict[int, Callable[[bytes], bytes]] = {
    NONE: lambda data: data,
    ZLIB: zlib.compress,
    LZ4: lambda data: bytes(cramjam.lz4.compress_block(data, store_size=False)),
    ZSTD: lambda data: bytes(cramjam.zstd.compress(data)),
    SNAPPY: lambda data: bytes(cramjam.snappy.compress_raw(data)),
}


def metadata(**fields: object) -> MessageMetadata:
    return MessageMetadata(producer_name="p", sequence_id=7, publish_time=1000, **fields)  # type: ignore[arg-type]


def entry(body: bytes) -> LogEntry:
    return LogEntry(pack(3, 4), 1000, body, tag=1)


def batch_of(*values: bytes | None) -> bytes:
    rows = []
    for number, value in enumerate(values):
        single = SingleMessageMetadata(
            payload_size=len(value or b""), partition_key=f"k{number}", null_value=value is None
        )
        head = single.SerializeToString()
        rows += [len(head).to_bytes(4, "big"), head, value or b""]
    return b"".join(rows)


@pytest.mark.parametrize("compression", COMPRESS)
def test_a_batch_is_opened_in_every_compression(compression: int) -> None:
    plain = batch_of(b"one", None, b"three" * 100)
    head = metadata(num_messages_in_batch=3, compression=compression, uncompressed_size=len(plain))
    body = encode_entry(head, COMPRESS[compression](plain))
    messages = list(decode_entry(entry(body), partition=2))
    assert [message.value for message in messages] == [b"one", None, b"three" * 100]
    assert [message.key for message in messages] == [b"k0", b"k1", b"k2"]
    assert messages[2].id == MessageId(3, 4, 2, 2)


def test_a_key_of_any_bytes_travels_as_base64() -> None:
    head = metadata(partition_key="/wA=", partition_key_b64_encoded=True)
    assert next(decode_entry(entry(encode_entry(head, b"v")))).key == b"\xff\0"


def test_a_key_that_only_says_it_is_base64_is_taken_as_it_is() -> None:
    head = metadata(partition_key="x", partition_key_b64_encoded=True)
    assert next(decode_entry(entry(encode_entry(head, b"v")))).key == b"x"


def test_a_key_that_is_neither_text_nor_base64_is_taken_as_it_is() -> None:
    head = metadata(partition_key="\u00e9", partition_key_b64_encoded=True)
    assert next(decode_entry(entry(encode_entry(head, b"v")))).key == "\u00e9".encode()


def test_invalid_utf8_keys_can_be_read() -> None:
    given = MessageMetadata(producer_name="@@", partition_key="@@", sequence_id=1, publish_time=1)
    head = given.SerializeToString().replace(b"@@", b"\xff\xfe")
    message = next(decode_entry(entry(len(head).to_bytes(4, "big") + head + b"v")))
    assert (message.key, message.producer) == (b"\xff\xfe", "\ufffd\ufffd")


def test_metadata_of_another_broker_is_skipped() -> None:
    body = b"\x0e\x02\0\0\0\x03abc" + encode_entry(metadata(), b"v")
    assert parse_entry(body)[0] == metadata_of(body) == metadata()


def test_damage_is_found() -> None:
    body = bytearray(encode_entry(metadata(), b"value"))
    body[-1] ^= 1
    with pytest.raises(InvalidInput, match="CRC"):
        parse_entry(body)


@pytest.mark.parametrize("body", [b"", b"\0\0", b"\0\0\0\x09abc", b"\0\0\0\x01\xff"])
def test_an_invalid_message_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidInput):
        parse_entry(body)


def test_a_batch_that_ends_early_is_refused() -> None:
    body = encode_entry(metadata(num_messages_in_batch=3), batch_of(b"one", b"two"))
    with pytest.raises(InvalidInput):
        list(decode_entry(entry(body)))


def test_a_payload_that_is_not_compressed_as_it_says_is_refused() -> None:
    body = encode_entry(metadata(compression=ZSTD, uncompressed_size=10), b"not zstd")
    with pytest.raises(InvalidInput, match="compressed"):
        list(decode_entry(entry(body)))


def test_only_live_messages_of_a_batch_count() -> None:
    body = encode_entry(metadata(num_messages_in_batch=3), batch_of(b"one", b"two", b"three"))
    found = list(decode_entry(LogEntry(pack(3, 4), 1000, body, tag=3, live=0b101)))
    assert [(message.id.batch_index, message.value) for message in found] == [
        (0, b"one"),
        (2, b"three"),
    ]


def test_a_shrunk_batch_lists_its_slots() -> None:
    head = metadata(num_messages_in_batch=9, compacted_batch_indexes=[4, 8])
    body = encode_entry(head, batch_of(b"one", b"two"))
    found = list(decode_entry(LogEntry(pack(3, 4), 1000, body, FLAG_SHRUNK, 9)))
    assert [(message.id.batch_index, message.value) for message in found] == [
        (4, b"one"),
        (8, b"two"),
    ]


@pytest.mark.parametrize("compression", COMPRESS)
def test_compressed_payloads_can_be_decompressed(compression: int) -> None:
    plain = batch_of(b"value" * 100)
    head = metadata(num_messages_in_batch=1, compression=compression, uncompressed_size=len(plain))
    body = encode_entry(head, compress(compression, plain))
    assert next(decode_entry(entry(body))).value == b"value" * 100


@pytest.mark.parametrize("compression", [LZ4, ZLIB, ZSTD, SNAPPY])
@pytest.mark.parametrize("says", [0, 4, 6, 100, 256 * 2**20 + 1, 2**32 - 1])
def test_a_payload_of_another_size_than_it_says_is_refused(compression: int, says: int) -> None:
    """LZ4 would fill it up with zeros, and the size alone would take 4 GiB of memory."""
    body = encode_entry(
        metadata(compression=compression, uncompressed_size=says), compress(compression, b"value")
    )
    with pytest.raises(InvalidInput, match=f" {says} bytes"):
        list(decode_entry(entry(body)))


@pytest.mark.parametrize("compression", [LZ4, ZLIB, ZSTD, SNAPPY])
def test_nothing_compressed_is_nothing(compression: int) -> None:
    body = encode_entry(metadata(compression=compression), compress(compression, b""))
    assert [each.value for each in decode_entry(entry(body))] == [None]
