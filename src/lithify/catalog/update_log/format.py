"""Keys and values of the update log in the metastore. Pure.

    catalog/version                     8 bytes big-endian: the newest version
    catalog/update/<version>            tag (16 bytes), then the update
    catalog/snapshot                    version (8), number of chunks (4), SHA-256 of all (32)
    catalog/snapshot/<version>/<chunk>  a part of a snapshot

`<version>` is 8 bytes, `<chunk>` 4 bytes, both big-endian and unsigned: the metastore orders keys
as unsigned bytes, so keys are in the order of their numbers. The tag is random, one for each
update that a writer tries to append; so a writer recognizes its own update.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from lithify.metastore.transaction import prefix_range

__all__ = [
    "LOG_RANGE",
    "SNAPSHOT_KEY",
    "TAG_BYTES",
    "VERSION_KEY",
    "SnapshotPointer",
    "chunk_key",
    "chunks_of",
    "encode_version",
    "parse_update_key",
    "parse_version",
    "update_key",
    "updates_up_to",
]

VERSION_KEY = b"catalog/version"
SNAPSHOT_KEY = b"catalog/snapshot"
LOG_RANGE = prefix_range(b"catalog/")
CHUNKS = b"catalog/snapshot/"
UPDATES = b"catalog/update/"

TAG_BYTES = 16
_VERSION = struct.Struct(">Q")
_CHUNK = struct.Struct(">I")
_POINTER = struct.Struct(">QI32s")


def encode_version(version: int) -> bytes:
    """A version as the value of `catalog/version`, and in keys."""
    return _VERSION.pack(version)


def parse_version(value: bytes) -> int:
    """The version in such a value."""
    return int(_VERSION.unpack(value)[0])


def update_key(version: int) -> bytes:
    """The key of an update."""
    return UPDATES + encode_version(version)


def parse_update_key(key: bytes) -> int | None:
    """The version of an update's key; None for another key."""
    if not key.startswith(UPDATES) or len(key) != len(UPDATES) + _VERSION.size:
        return None
    return parse_version(key[len(UPDATES) :])


def updates_up_to(version: int) -> tuple[bytes, bytes]:
    """The range of the updates up to a version, with it."""
    return UPDATES, update_key(version + 1)


def chunk_key(version: int, chunk: int) -> bytes:
    """The key of a part of a snapshot."""
    return chunks_of(version)[0] + _CHUNK.pack(chunk)


def chunks_of(version: int) -> tuple[bytes, bytes]:
    """The range of the chunks of a snapshot."""
    return prefix_range(CHUNKS + encode_version(version) + b"/")


@dataclass(frozen=True, slots=True)
class SnapshotPointer:
    """The value of `catalog/snapshot`."""

    version: int
    chunks: int
    digest: bytes

    def encode(self) -> bytes:
        """Its bytes."""
        return _POINTER.pack(self.version, self.chunks, self.digest)

    @classmethod
    def parse(cls, value: bytes) -> SnapshotPointer:
        """From its bytes."""
        return cls(*_POINTER.unpack(value))
