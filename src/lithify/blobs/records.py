"""The records of a blob store, as the bodies of its log's entries.

The upper byte of a frame's flags is the kind of the record, and the frame has the time of the
operation; the body has the rest. All numbers are little-endian.

    every record but a part
         0     1  version       1
         1     1  kind          1 put, 2 delete, 3 ttl, 4 undelete
         2     2  id_bytes      1 … 1024
         4     4  life_version  0 for a put, one higher with each undelete
         8     8  expiry_ms     the blob is expired after this time; 2^63-1: never
        16    16  id_hash       BLAKE2b of the id, 128 bits, keyed with the log's id
    a put continues with
        32     8  created_ms    when the blob was created; the frame has the time of the put
        40     8  size          bytes of the content
        48     4  content_crc   CRC-32C of the content
        52     4  parts         entries before this one with the content; 0: it is in this one
        56     2  service_bytes
        58     2  owner_bytes
        60     2  type_bytes
        62     2  zero
        64     4  meta_bytes
        68     4  zero
    then the id, and for a put service, owner, content type, user metadata and, where `parts` is 0,
    the content. Texts are UTF-8. An item of metadata is two lengths of 2 bytes, name and value.

    part (kind 5): 65536 bytes of content; the last one may have fewer

1. Content of up to 64 KiB is in the put itself. Larger content is before it, in parts at the
   positions just below. The put is last: without it the parts are ignored, with it all are present.
2. Every frame has a CRC, and a part is a frame: any 64 KiB of a blob can be read and checked alone.
3. Each record has the expiry and life version that hold from it on, so that the newest record of a
   blob gives its full state.
4. The record contains the hash, so that an index is built without a loop over ids.

Pure. Called by the modules of this package.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING

from lithify.errors import DamagedFrame, InvalidInput
from lithify.log.segments.frame import FLAG_TOMBSTONE, HEADER_BYTES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lithify.checksum import Buffer

__all__ = [
    "IDENTITY_BYTES_MAX",
    "ID_BYTES_MAX",
    "KIND_SHIFT",
    "META_BYTES_MAX",
    "NEVER_MS",
    "PART_BYTES",
    "RECORD_VERSION",
    "TEXT_BYTES_MAX",
    "BlobRecordKind",
    "PutRecord",
    "RecordIdentity",
    "decode_id",
    "decode_identity",
    "decode_put",
    "encode_change",
    "encode_put",
    "erasable",
    "flags_of",
    "hash_id",
    "part_bytes",
    "parts_of",
]

RECORD_VERSION = 1
PART_BYTES = 64 * 1024
NEVER_MS = 2**63 - 1
ID_BYTES_MAX = 1024
TEXT_BYTES_MAX = 1024
"""Each, of service, owner and content type."""
META_BYTES_MAX = 16 * 1024
KIND_SHIFT = 8

_COMMON = struct.Struct("<BBHIq16s")
_PUT = struct.Struct("<qQIIHHHHII")
_WHOLE_PUT = struct.Struct("<BBHIq16s qQIIHHHHII")
_ITEM = struct.Struct("<HH")
_PUT_BYTES = 72
IDENTITY_BYTES_MAX = _PUT_BYTES + ID_BYTES_MAX
_CONTENT_CRC = (48, 52)
"""Erased as well: it would confirm a guess of the content."""
assert _COMMON.size + _PUT.size == _WHOLE_PUT.size == _PUT_BYTES


class BlobRecordKind(IntEnum):
    """The kind of a record."""

    PUT = 1
    DELETE = 2
    TTL = 3
    UNDELETE = 4
    PART = 5


@dataclass(frozen=True, slots=True)
class PutRecord:
    """All fields of a put."""

    blob_id: str
    service: str
    owner: str
    content_type: str
    created_ms: int
    expiry_ms: int
    size: int
    content_crc: int
    metadata: Mapping[str, str] = field(default_factory=dict)
    life_version: int = 0

    @property
    def parts(self) -> int:
        """Entries before the put that hold the content."""
        return parts_of(self.size)


@dataclass(frozen=True, slots=True)
class RecordIdentity:
    """The blob of a record and, for a put, its content."""

    blob_id: str
    created_ms: int = 0
    size: int = 0
    content_crc: int = 0


def parts_of(size: int) -> int:
    """Number of parts of a content of this size; 0 for small content."""
    return 0 if size <= PART_BYTES else -(-size // PART_BYTES)


def part_bytes(size: int) -> int:
    """Bytes that the parts of a content of this size take in a segment, frames included."""
    parts = parts_of(size)
    return size + HEADER_BYTES * parts if parts else 0


def flags_of(kind: BlobRecordKind) -> int:
    """The flags of a record's frame."""
    return kind << KIND_SHIFT | (FLAG_TOMBSTONE if kind is BlobRecordKind.DELETE else 0)


def hash_id(blob_id: str, log_id: bytes) -> bytes:
    """The hash that identifies a blob in the indexes; the key prevents chosen collisions."""
    return hashlib.blake2b(_text("id", blob_id, ID_BYTES_MAX), digest_size=16, key=log_id).digest()


def encode_put(put: PutRecord, id_hash: bytes) -> bytes:
    """The body of a put without content; raises `InvalidInput` for values beyond the limits."""
    blob_id = _text("id", put.blob_id, ID_BYTES_MAX)
    if not blob_id:
        raise InvalidInput("a blob's id is empty, must have 1 byte or more")
    service = _text("service", put.service, TEXT_BYTES_MAX)
    owner = _text("owner", put.owner, TEXT_BYTES_MAX)
    content_type = _text("content type", put.content_type, TEXT_BYTES_MAX)
    metadata = _encode_metadata(put.metadata)
    _check_expiry(put.expiry_ms)
    common = _common(BlobRecordKind.PUT, blob_id, put.life_version, put.expiry_ms, id_hash)
    fixed = _PUT.pack(
        put.created_ms,
        put.size,
        put.content_crc,
        put.parts,
        len(service),
        len(owner),
        len(content_type),
        0,
        len(metadata),
        0,
    )
    return b"".join((common, fixed, blob_id, service, owner, content_type, metadata))


def encode_change(
    kind: BlobRecordKind, blob_id: str, life_version: int, expiry_ms: int, id_hash: bytes
) -> bytes:
    """The body of a delete, ttl or undelete."""
    _check_expiry(expiry_ms)
    text = _text("id", blob_id, ID_BYTES_MAX)
    return _common(kind, text, life_version, expiry_ms, id_hash) + text


def decode_put(
    body: Buffer, path: str, offset: int, *, erased: bool = False
) -> tuple[PutRecord, int]:
    """(put, where in the body its content begins); file and offset are named in errors.

    An erased put has no metadata, and zeros for the content and its CRC.
    """
    try:
        version, kind, id_bytes, life_version, expiry_ms, _, *rest = _WHOLE_PUT.unpack_from(body)
        created_ms, size, crc, parts, *lengths, _, meta_bytes, _ = rest
        at = _PUT_BYTES
        texts = []
        for length in (id_bytes, *lengths):
            texts.append(str(body[at : at + length], "utf-8") if length else "")
            at += length
        has_metadata = meta_bytes and not erased
        metadata = _decode_metadata(bytes(body[at : at + meta_bytes])) if has_metadata else {}
        at += meta_bytes
    except (struct.error, UnicodeDecodeError) as error:
        raise DamagedFrame(path, offset, f"not a put record: {error}") from error
    expected = at + (0 if parts else size)
    if (version, kind, parts, len(body)) != (
        RECORD_VERSION,
        BlobRecordKind.PUT,
        parts_of(size),
        expected,
    ):
        raise DamagedFrame(path, offset, f"not a put record of version {RECORD_VERSION}")
    blob_id, service, owner, content_type = texts
    put = PutRecord(
        blob_id,
        service,
        owner,
        content_type,
        created_ms,
        expiry_ms,
        size,
        crc,
        metadata,
        life_version,
    )
    return put, at


def erasable(kind: BlobRecordKind, body: Buffer) -> tuple[tuple[int, int], ...]:
    """The ranges of the body of an intact put or part that erasing zeroes, half-open."""
    if kind is BlobRecordKind.PART:
        return ((0, len(body)),)
    _, _, id_bytes, *_ = _COMMON.unpack_from(body)
    _, _, _, _, *lengths, _, _, _ = _PUT.unpack_from(body, _COMMON.size)
    at = _PUT_BYTES + id_bytes + sum(lengths)
    return (_CONTENT_CRC, (at, len(body))) if at < len(body) else (_CONTENT_CRC,)


def decode_identity(start: Buffer, path: str, offset: int) -> RecordIdentity:
    """Parse the first bytes of a body, `IDENTITY_BYTES_MAX` of it or all.

    No CRC covers a beginning: a caller that has the hash of the id compares it.
    """
    try:
        _, kind, id_bytes, *_ = _COMMON.unpack_from(start)
        if kind != BlobRecordKind.PUT:
            return RecordIdentity(str(start[_COMMON.size : _COMMON.size + id_bytes], "utf-8"))
        created_ms, size, content_crc, *_ = _PUT.unpack_from(start, _COMMON.size)
        blob_id = str(start[_PUT_BYTES : _PUT_BYTES + id_bytes], "utf-8")
    except (struct.error, UnicodeDecodeError) as error:
        raise DamagedFrame(path, offset, f"not a record: {error}") from error
    return RecordIdentity(blob_id, created_ms, size, content_crc)


def decode_id(body: bytes) -> str:
    """The id of a delete, ttl or undelete."""
    return body[_COMMON.size :].decode()


def _common(
    kind: BlobRecordKind, blob_id: bytes, life_version: int, expiry_ms: int, id_hash: bytes
) -> bytes:
    return _COMMON.pack(RECORD_VERSION, kind, len(blob_id), life_version, expiry_ms, id_hash)


def _check_expiry(expiry_ms: int) -> None:
    if not 0 <= expiry_ms <= NEVER_MS:
        raise InvalidInput(f"expiry {expiry_ms} ms is out of range, must be 0 … {NEVER_MS}")


def _text(name: str, value: str, limit: int) -> bytes:
    try:
        data = value.encode()
    except UnicodeEncodeError as error:
        raise InvalidInput(f"{name} {value!r} is not text: {error.reason}") from error
    if len(data) > limit:
        raise InvalidInput(f"{name} has {len(data)} bytes, must be at most {limit}")
    return data


def _encode_metadata(metadata: Mapping[str, str]) -> bytes:
    items = []
    for name, value in metadata.items():
        key, text = (
            _text("metadata", name, META_BYTES_MAX),
            _text("metadata", value, META_BYTES_MAX),
        )
        items.append(_ITEM.pack(len(key), len(text)) + key + text)
    data = b"".join(items)
    if len(data) > META_BYTES_MAX:
        raise InvalidInput(f"metadata has {len(data)} bytes, must be at most {META_BYTES_MAX}")
    return data


def _decode_metadata(data: bytes) -> dict[str, str]:
    metadata, at = {}, 0
    while at < len(data):
        key_bytes, value_bytes = _ITEM.unpack_from(data, at)
        at += _ITEM.size
        value_at = at + key_bytes
        metadata[data[at:value_at].decode()] = data[value_at : value_at + value_bytes].decode()
        at = value_at + value_bytes
    return metadata
