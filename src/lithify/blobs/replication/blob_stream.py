"""The stream of blobs from one replica to another; every byte is covered by a CRC.

each blob
       0     4  head_bytes    little-endian, as all numbers here
       4     4  head_crc      CRC-32C of the head
       8        head          JSON: the blob's state and all fields of its put
                content       `size` bytes; the head has the size and the CRC-32C
  a missing blob: a head with nothing but `missing`, its id
the end: 8 zero bytes; without them the stream was cut off

The content is not buffered: the decoder returns one blob at a time, which the caller reads to its
end before the next one. Unknown fields of a head are ignored.

Pure, except for reading the stream. Called by both sides of replication.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lithify.blobs.errors import ReplicaAnswerInvalid
from lithify.blobs.records import BlobRecordKind, PutRecord
from lithify.blobs.replication.tokens_and_pages import BlobChange
from lithify.checksum import crc32c

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lithify.blobs.content.reader import BlobInfo
    from lithify.blobs.content.spool import ByteStream

__all__ = ["END", "Part", "ReplicatedBlob", "encode_head", "encode_missing", "read_records"]

HEAD_BYTES_MAX = 256 * 1024
"""All texts and metadata of a put at their maximum, every character escaped."""

_PREFIX = struct.Struct("<II")
END = bytes(_PREFIX.size)


@dataclass(frozen=True, slots=True)
class ReplicatedBlob:
    """A blob as another replica sent it."""

    put: PutRecord
    """With the current life version and expiry."""
    time_ms: int
    """Time of the last change."""

    @property
    def change(self) -> BlobChange:
        """The state of the blob."""
        put = self.put
        return BlobChange(
            put.blob_id,
            BlobRecordKind.PUT,
            put.life_version,
            self.time_ms,
            put.expiry_ms,
            put.created_ms,
            put.size,
            put.content_crc,
        )


class Part:
    """The next `size` bytes of a stream; a reader cannot read beyond them."""

    def __init__(self, stream: ByteStream, size: int) -> None:
        self._stream = stream
        self.left = size

    def read(self, size: int, /) -> bytes:
        """At most `size` bytes; none at the end."""
        if not self.left:
            return b""
        data = self._stream.read(min(size, self.left))
        if not data:
            raise ReplicaAnswerInvalid(
                f"the stream ends {self.left} bytes before the end of a content"
            )
        self.left -= len(data)
        return data


def encode_head(info: BlobInfo) -> bytes:
    """The bytes before the content of a blob."""
    put = info.put
    return _encode(
        {
            "id": put.blob_id,
            "service": put.service,
            "owner": put.owner,
            "content_type": put.content_type,
            "created_ms": put.created_ms,
            "expiry_ms": info.expiry_ms,
            "size": put.size,
            "content_crc": put.content_crc,
            "metadata": dict(put.metadata),
            "life_version": info.life_version,
            "time_ms": info.changed_ms,
        }
    )


def encode_missing(blob_id: str) -> bytes:
    """The bytes for a missing blob."""
    return _encode({"missing": blob_id})


def read_records(stream: ByteStream) -> Iterator[tuple[ReplicatedBlob, Part]]:
    """The blobs of a stream, without the missing ones."""
    while True:
        head_bytes, head_crc = _PREFIX.unpack(_exactly(stream, _PREFIX.size))
        if not head_bytes:
            return
        if head_bytes > HEAD_BYTES_MAX:
            raise ReplicaAnswerInvalid(f"a head of {head_bytes} bytes, at most {HEAD_BYTES_MAX}")
        head = _exactly(stream, head_bytes)
        if crc32c(head) != head_crc:
            raise ReplicaAnswerInvalid("CRC-32C of a head does not match")
        record = _decode(head)
        if record is not None:
            content = Part(stream, record.put.size)
            yield record, content
            if content.left:
                raise ReplicaAnswerInvalid(f"{content.left} bytes of a content were not read")


def _encode(head: dict[str, object]) -> bytes:
    data = json.dumps(head, separators=(",", ":")).encode()
    return _PREFIX.pack(len(data), crc32c(data)) + data


def _decode(head: bytes) -> ReplicatedBlob | None:
    """Parse a head; None: the blob is missing."""
    try:
        row = json.loads(head)
        if "missing" in row:
            return None
        put = PutRecord(
            row["id"],
            row["service"],
            row["owner"],
            row["content_type"],
            row["created_ms"],
            row["expiry_ms"],
            row["size"],
            row["content_crc"],
            dict(row["metadata"]),
            row["life_version"],
        )
        record = ReplicatedBlob(put, row["time_ms"])
        # Checks the numbers like those of any change.
        BlobChange.from_row(record.change.to_row())
    except (KeyError, TypeError, ValueError) as error:
        raise ReplicaAnswerInvalid(
            f"head {head[:200]!r} is not that of a blob: {error!r}"
        ) from error
    return record


def _exactly(stream: ByteStream, size: int) -> bytes:
    part = Part(stream, size)
    pieces = []
    while part.left:
        pieces.append(part.read(size))
    return b"".join(pieces)
