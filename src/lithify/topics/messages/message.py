"""The format of messages, in an entry and as users of the library see them.

    [0x0e02 (2) | size (4) | BrokerEntryMetadata]     optional, from other brokers
    [0x0e01 (2) | CRC-32C (4)]                        optional; over everything after it
    metadata size (4) | MessageMetadata | payload     big-endian

The payload of a batch is compressed as a whole and then encrypted. Decompressed, it is a sequence
of (size (4) | SingleMessageMetadata | bytes). An encrypted payload is delivered unchanged.

The **slot** of a message is its index in the batch as the producer sent it. Compaction can have
removed messages from a batch in two ways, and slots mean the same in both:

- Lithify flags the entry's frame with `FLAG_SHRUNK`. The batch has only the retained messages, and
  `compacted_batch_indexes` lists their slots.
- Other brokers leave a placeholder for each removed message: no key, no value, `compacted_out` set.

Pure: bytes in, values out.
"""

from __future__ import annotations

import base64
import zlib
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import cramjam
from google.protobuf.message import DecodeError

from lithify.checksum import crc32c
from lithify.errors import InvalidInput
from lithify.positions import unpack
from lithify.topics.messages.message_pb2 import (
    LZ4,
    SNAPPY,
    ZLIB,
    ZSTD,
    MessageMetadata,
    SingleMessageMetadata,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from lithify.checksum import Buffer
    from lithify.log.segments.frame import LogEntry

__all__ = [
    "FLAG_SHRUNK",
    "PLAIN_BYTES_MAX",
    "Message",
    "MessageId",
    "broker_metadata_bytes",
    "compress",
    "decode_entry",
    "decompress",
    "decompress_as",
    "encode_entry",
    "key_of",
    "messages_of",
    "metadata_of",
    "new_entry",
    "open_payload",
    "parse_entry",
    "read_entry",
    "text_of",
]

FLAG_SHRUNK = 0x0400
"""Frame flag: the batch has only the messages that `compacted_batch_indexes` lists."""

PLAIN_BYTES_MAX = 256 << 20
"""Limit of a decompressed payload. A few compressed bytes can claim any size."""

_CODECS = frozenset({LZ4, ZLIB, ZSTD, SNAPPY})
_BROKER_MAGIC = b"\x0e\x02"
_CRC_MAGIC = b"\x0e\x01"


@dataclass(frozen=True, slots=True, order=True)
class MessageId:
    """The id of a message; `batch_index` is -1 for a message outside a batch."""

    ledger: int
    entry: int
    batch_index: int = -1
    partition: int = -1

    def __str__(self) -> str:
        text = f"{self.ledger}:{self.entry}"
        return text if self.batch_index < 0 else f"{text}:{self.batch_index}"


@dataclass(frozen=True, slots=True)
class Message:
    """A message as a user of the library sees it; `value` is None for a tombstone."""

    id: MessageId
    key: bytes | None
    value: bytes | None
    properties: Mapping[str, str] = field(default_factory=dict)
    publish_time_ms: int = 0
    event_time_ms: int = 0
    producer: str = ""
    sequence_id: int = 0
    error: str = ""
    """Why the entry cannot be decoded; `key` is then None and `value` the stored entry."""


def encode_entry(metadata: MessageMetadata, payload: Buffer) -> bytes:
    """The entry as a producer sends it and the log stores it, with a CRC-32C."""
    head = metadata.SerializeToString()
    body = b"".join((len(head).to_bytes(4, "big"), head, payload))
    return b"".join((_CRC_MAGIC, crc32c(body).to_bytes(4, "big"), body))


def new_entry(
    *,
    value: bytes | None,
    key: str | bytes | None,
    properties: Mapping[str, str],
    event_time_ms: int,
    producer: str,
    sequence_id: int,
    publish_time_ms: int,
) -> bytes:
    """Encode one message that does not come from a Pulsar client as an entry."""
    metadata = MessageMetadata(
        producer_name=producer, sequence_id=sequence_id, publish_time=publish_time_ms
    )
    if isinstance(key, bytes):
        metadata.partition_key = base64.b64encode(key).decode()
        metadata.partition_key_b64_encoded = True
    elif key is not None:
        metadata.partition_key = key
    if value is None:
        metadata.null_value = True
    if event_time_ms:
        metadata.event_time = event_time_ms
    for name, text in properties.items():
        metadata.properties.add(key=name, value=text)
    return encode_entry(metadata, value or b"")


def parse_entry(body: Buffer) -> tuple[MessageMetadata, memoryview]:
    """Split an entry into (metadata, payload); verify its CRC if it has one."""
    view = _without_broker_metadata(body)
    if view[:2] == _CRC_MAGIC and crc32c(view[6:]) != int.from_bytes(view[2:6], "big"):
        raise InvalidInput("the CRC-32C of a message does not match")
    return _split(view)


def metadata_of(body: Buffer) -> MessageMetadata:
    """The metadata of an entry. Does not read the payload, so it does not verify the CRC."""
    return _split(_without_broker_metadata(body))[0]


def _without_broker_metadata(body: Buffer) -> memoryview:
    return memoryview(body)[broker_metadata_bytes(body) :]


def broker_metadata_bytes(body: Buffer) -> int:
    """The size of the BrokerEntryMetadata header of an entry, 0 without one."""
    view = memoryview(body)
    return 6 + int.from_bytes(view[2:6], "big") if view[:2] == _BROKER_MAGIC else 0


def _split(view: memoryview) -> tuple[MessageMetadata, memoryview]:
    if view[:2] == _CRC_MAGIC:
        view = view[6:]
    size = int.from_bytes(view[:4], "big")
    if len(view) < 4 or size > len(view) - 4:
        raise InvalidInput(f"message metadata of {size} bytes in an entry of {len(view)} bytes")
    try:
        return MessageMetadata.FromString(bytes(view[4 : 4 + size])), view[4 + size :]
    except DecodeError as error:
        raise InvalidInput(f"message metadata cannot be parsed: {error}") from error


def decode_entry(entry: LogEntry, partition: int = -1) -> Iterator[Message]:
    """The messages of an entry; only the live ones if `entry.live` is set."""
    metadata, payload = parse_entry(entry.body)
    ledger, number = unpack(entry.position)
    if not metadata.HasField("num_messages_in_batch") or metadata.encryption_keys:
        plain = payload if metadata.encryption_keys else decompress(metadata, payload)
        empty = metadata.null_value or not len(plain)
        yield Message(
            MessageId(ledger, number, -1, partition),
            key_of(metadata),
            None if empty else bytes(plain),
            _properties_of(metadata),
            metadata.publish_time,
            metadata.event_time,
            text_of(metadata.producer_name),
            metadata.sequence_id,
        )
        return
    for slot, single, value in messages_of(
        metadata, payload, shrunk=bool(entry.flags & FLAG_SHRUNK)
    ):
        if entry.live is not None and not entry.live >> slot & 1:
            continue
        yield Message(
            MessageId(ledger, number, slot, partition),
            key_of(single),
            None if single.null_value or not len(value) else bytes(value),
            _properties_of(single),
            metadata.publish_time,
            single.event_time,
            text_of(metadata.producer_name),
            single.sequence_id,
        )


def read_entry(entry: LogEntry, partition: int = -1) -> list[Message]:
    """Like `decode_entry`, but an unreadable entry is one message with `error` set."""
    try:
        return list(decode_entry(entry, partition))
    except InvalidInput as error:
        where = MessageId(*unpack(entry.position), -1, partition)
        return [Message(where, None, bytes(entry.body), error=str(error))]


def messages_of(
    metadata: MessageMetadata, payload: Buffer, *, shrunk: bool = False
) -> Iterator[tuple[int, SingleMessageMetadata, memoryview]]:
    """(slot, metadata, value) of each message of an unencrypted batch, without placeholders."""
    plain = memoryview(decompress(metadata, payload))
    at = 0
    slots: Iterable[int] = range(metadata.num_messages_in_batch)
    for slot in metadata.compacted_batch_indexes if shrunk else slots:
        size = int.from_bytes(plain[at : at + 4], "big")
        try:
            single = SingleMessageMetadata.FromString(bytes(plain[at + 4 : at + 4 + size]))
        except DecodeError as error:
            raise InvalidInput(f"message {slot} of a batch cannot be parsed: {error}") from error
        begin = at + 4 + size
        at = begin + single.payload_size
        if at > len(plain):
            raise InvalidInput(f"message {slot} of a batch extends past the end of the batch")
        if not single.compacted_out:
            yield slot, single, plain[begin:at]


def key_of(metadata: MessageMetadata | SingleMessageMetadata) -> bytes | None:
    """The key of a message, decoded from Base64 if its metadata says so."""
    if not metadata.HasField("partition_key") or metadata.null_partition_key:
        return None
    if metadata.partition_key_b64_encoded and len(metadata.partition_key) % 4 == 0:
        # Invalid Base64 is taken as plain text: a producer must not stop dispatch with its key.
        with suppress(ValueError):
            return base64.b64decode(metadata.partition_key, validate=True)
    return _bytes_of(metadata.partition_key)


def _bytes_of(text: str | bytes) -> bytes:
    # The generated code returns bytes for a text field that is not valid UTF-8.
    return text if isinstance(text, bytes) else text.encode()


def text_of(text: str | bytes) -> str:
    """A text field of the metadata; invalid UTF-8 becomes replacement characters."""
    return text.decode(errors="replace") if isinstance(text, bytes) else text


def _properties_of(metadata: MessageMetadata | SingleMessageMetadata) -> dict[str, str]:
    return {text_of(pair.key): text_of(pair.value) for pair in metadata.properties}


def decompress(metadata: MessageMetadata, payload: Buffer) -> Buffer:
    """Decompress an unencrypted payload."""
    return decompress_as(metadata.compression, payload, metadata.uncompressed_size)


def decompress_as(codec: int, payload: Buffer, size: int) -> Buffer:
    """Decompress a payload of `size` uncompressed bytes into new memory.

    Returns the payload itself if the codec is none.
    """
    if codec not in _CODECS:
        return payload
    if size > PLAIN_BYTES_MAX:
        what = f"payload claims {size} bytes when decompressed"
        raise InvalidInput(f"{what}, the limit is {PLAIN_BYTES_MAX}")
    plain = bytearray(size)
    if not open_payload(codec, memoryview(payload), memoryview(plain)):
        raise InvalidInput(f"payload is not valid compressed data of {size} bytes")
    return plain


def open_payload(codec: int, payload: memoryview, out: memoryview) -> bool:
    """Decompress a payload into `out`; False unless it fills `out` exactly."""
    try:
        if codec == LZ4:
            size = cramjam.lz4.decompress_block_into(payload, out)
        elif codec == ZSTD:
            size = cramjam.zstd.decompress_into(payload, out)
        elif codec == SNAPPY:
            size = cramjam.snappy.decompress_raw_into(payload, out)
        else:
            assert codec == ZLIB
            opener = zlib.decompressobj()
            # One byte more than expected, so that zlib reads to the end of the stream.
            plain = opener.decompress(payload, len(out) + 1)
            size = len(plain) if opener.eof else -1
            if size == len(out):
                out[:] = plain
    except (cramjam.DecompressionError, zlib.error):
        return False
    return bool(size == len(out))


def compress(codec: int, plain: Buffer) -> Buffer:
    """Compress for `decompress_as`; returns `plain` itself if the codec is none."""
    if codec == LZ4:
        return bytes(cramjam.lz4.compress_block(plain, store_size=False))
    if codec == ZLIB:
        return zlib.compress(plain)
    if codec == ZSTD:
        return bytes(cramjam.zstd.compress(plain))
    if codec == SNAPPY:
        return bytes(cramjam.snappy.compress_raw(plain))
    return plain
