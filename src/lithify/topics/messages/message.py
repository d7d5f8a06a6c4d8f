"""Messages as they stand in an entry, and as users see them.

    [0x0e02 (2) | size (4) | BrokerEntryMetadata]     optional, from other brokers
    [0x0e01 (2) | CRC-32C (4)]                        optional; of everything after it
    metadata size (4) | MessageMetadata | payload     big-endian

The payload of a batch is compressed as a whole and then encrypted; opened, it is a row of
(size (4) | SingleMessageMetadata | bytes). An encrypted payload is handed on as it is.

A message of a batch is named by its **slot**, its place in the batch as the producer sent it. There
are two ways in which a batch can have lost messages to compaction, and slots mean the same in both:
ours, flagged in the entry's frame (`FLAG_SHRUNK`), has only the retained ones and lists their slots
in `compacted_batch_indexes`; the other, of brokers that came before, has a message without key and
value, marked `compacted_out`, in the place of each one that is gone.

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
"""Of an entry's frame: the batch has only the messages that `compacted_batch_indexes` lists."""

PLAIN_BYTES_MAX = 256 << 20
"""What says that it is larger when opened is not opened: a few bytes can say so."""

_CODECS = frozenset({LZ4, ZLIB, ZSTD, SNAPPY})
_BROKER_MAGIC = b"\x0e\x02"
_CRC_MAGIC = b"\x0e\x01"


@dataclass(frozen=True, slots=True, order=True)
class MessageId:
    """Where a message is; `batch_index` is -1 for one that is not in a batch."""

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
    """Why the entry cannot be opened; `value` is then the entry as it is stored, with no key."""


def encode_entry(metadata: MessageMetadata, payload: Buffer) -> bytes:
    """The bytes that a producer sends and the log keeps."""
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
    """The entry of one message that did not come from a Pulsar client."""
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
    """(metadata, payload) of an entry, its CRC checked if it has one."""
    view = _without_broker_metadata(body)
    if view[:2] == _CRC_MAGIC and crc32c(view[6:]) != int.from_bytes(view[2:6], "big"):
        raise InvalidInput("the CRC-32C of a message does not match")
    return _split(view)


def metadata_of(body: Buffer) -> MessageMetadata:
    """The metadata alone, at no cost for the payload: nothing is checked by CRC."""
    return _split(_without_broker_metadata(body))[0]


def _without_broker_metadata(body: Buffer) -> memoryview:
    return memoryview(body)[broker_metadata_bytes(body) :]


def broker_metadata_bytes(body: Buffer) -> int:
    """How much of an entry another broker has put in front of it."""
    view = memoryview(body)
    return 6 + int.from_bytes(view[2:6], "big") if view[:2] == _BROKER_MAGIC else 0


def _split(view: memoryview) -> tuple[MessageMetadata, memoryview]:
    if view[:2] == _CRC_MAGIC:
        view = view[6:]
    size = int.from_bytes(view[:4], "big")
    if len(view) < 4 or size > len(view) - 4:
        raise InvalidInput(f"message metadata of {size} bytes in an entry of {len(view)}")
    try:
        return MessageMetadata.FromString(bytes(view[4 : 4 + size])), view[4 + size :]
    except DecodeError as error:
        raise InvalidInput(f"message metadata is not readable: {error}") from error


def decode_entry(entry: LogEntry, partition: int = -1) -> Iterator[Message]:
    """The messages of an entry, those that are live if it says which."""
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
    """The same for somebody who reads on whatever comes: what cannot be opened is one message."""
    try:
        return list(decode_entry(entry, partition))
    except InvalidInput as error:
        where = MessageId(*unpack(entry.position), -1, partition)
        return [Message(where, None, bytes(entry.body), error=str(error))]


def messages_of(
    metadata: MessageMetadata, payload: Buffer, *, shrunk: bool = False
) -> Iterator[tuple[int, SingleMessageMetadata, memoryview]]:
    """(slot, metadata, value) of each message of a batch that is not encrypted."""
    plain = memoryview(decompress(metadata, payload))
    at = 0
    slots: Iterable[int] = range(metadata.num_messages_in_batch)
    for slot in metadata.compacted_batch_indexes if shrunk else slots:
        size = int.from_bytes(plain[at : at + 4], "big")
        try:
            single = SingleMessageMetadata.FromString(bytes(plain[at + 4 : at + 4 + size]))
        except DecodeError as error:
            raise InvalidInput(f"message {slot} of a batch is not readable: {error}") from error
        begin = at + 4 + size
        at = begin + single.payload_size
        if at > len(plain):
            raise InvalidInput(f"message {slot} of a batch reaches past its end")
        if not single.compacted_out:
            yield slot, single, plain[begin:at]


def key_of(metadata: MessageMetadata | SingleMessageMetadata) -> bytes | None:
    """The key, decoded if it was not text."""
    if not metadata.HasField("partition_key") or metadata.null_partition_key:
        return None
    if metadata.partition_key_b64_encoded and len(metadata.partition_key) % 4 == 0:
        # One that only says so is taken as it is: no producer may stop dispatch with its key.
        with suppress(ValueError):
            return base64.b64decode(metadata.partition_key, validate=True)
    return _bytes_of(metadata.partition_key)


def _bytes_of(text: str | bytes) -> bytes:
    # What was sent as text and is not UTF-8 is given out as bytes by the generated code.
    return text if isinstance(text, bytes) else text.encode()


def text_of(text: str | bytes) -> str:
    """A text of a message's metadata, whatever was sent as one."""
    return text.decode(errors="replace") if isinstance(text, bytes) else text


def _properties_of(metadata: MessageMetadata | SingleMessageMetadata) -> dict[str, str]:
    return {text_of(pair.key): text_of(pair.value) for pair in metadata.properties}


def decompress(metadata: MessageMetadata, payload: Buffer) -> Buffer:
    """The payload, which is not encrypted, as it was before it was compressed."""
    return decompress_as(metadata.compression, payload, metadata.uncompressed_size)


def decompress_as(codec: int, payload: Buffer, size: int) -> Buffer:
    """The payload as it was before it was compressed, when it had `size` bytes.

    It is given back as it is if the codec is none, else in memory of its own.
    """
    if codec not in _CODECS:
        return payload
    if size > PLAIN_BYTES_MAX:
        what = f"payload is said to have {size} bytes when opened"
        raise InvalidInput(f"{what}, the limit is {PLAIN_BYTES_MAX}")
    plain = bytearray(size)
    if not open_payload(codec, memoryview(payload), memoryview(plain)):
        raise InvalidInput(f"payload is not {size} bytes compressed as it says")
    return plain


def open_payload(codec: int, payload: memoryview, out: memoryview) -> bool:
    """Open a compressed payload into `out`; False if it is not just so many bytes."""
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
            # One byte more than expected, so that it reads on to the end of the stream.
            plain = opener.decompress(payload, len(out) + 1)
            size = len(plain) if opener.eof else -1
            if size == len(out):
                out[:] = plain
    except (cramjam.DecompressionError, zlib.error):
        return False
    return bool(size == len(out))


def compress(codec: int, plain: Buffer) -> Buffer:
    """What `decompress_as` opens; it is given back as it is if the codec is none."""
    if codec == LZ4:
        return bytes(cramjam.lz4.compress_block(plain, store_size=False))
    if codec == ZLIB:
        return zlib.compress(plain)
    if codec == ZSTD:
        return bytes(cramjam.zstd.compress(plain))
    if codec == SNAPPY:
        return bytes(cramjam.snappy.compress_raw(plain))
    return plain
