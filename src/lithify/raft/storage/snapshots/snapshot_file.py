"""The bytes of a snapshot: what it is of, and the machine's state in pieces.

    header (24 bytes)   little-endian
         0     8  magic     "LITHSNAP"
         8     4  version   1
        12     4  length    bytes of the head
        16     4  crc       CRC-32C of the head
        20     4  crc       CRC-32C of bytes 0 … 20
    head                JSON: index, term, members and their identities, machine version
    pieces, each
         0     4  length    1 … 2^30
         4     4  crc       CRC-32C of its bytes, beginning with the CRC of the piece before
         8  length
    end (8 bytes)       a piece of length 0, with the CRC of the last one

CRCs continue from piece to piece, so a missing, repeated or reordered piece is found like a damaged
one. A file without an end was never finished.

The bytes are the same on every member. The state is never in memory as a whole unless the machine
needs that.
"""

from __future__ import annotations

import json
import struct
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from lithify.checksum import crc32c
from lithify.errors import DamagedFile, UnsupportedVersion
from lithify.raft.core.configuration import Config
from lithify.raft.core.values import SnapshotMeta

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lithify.checksum import Buffer
    from lithify.fs import File

__all__ = ["PIECE_BYTES", "Head", "SnapshotWriter", "read_head", "read_pieces"]

SNAPSHOT_VERSION = 1
PIECE_BYTES = 1_000_000
"""The approximate size of a machine's pieces; also of the pieces sent to a member."""

_MAGIC = b"LITHSNAP"
_HEADER = struct.Struct("<8sIII")
_CRC = struct.Struct("<I")
_PIECE = struct.Struct("<II")
_HEAD_BYTES_MAX = 2**24
_PIECE_BYTES_MAX = 2**30


@dataclass(frozen=True, slots=True)
class Head:
    """The index, term, members and machine version of a snapshot."""

    meta: SnapshotMeta
    machine_version: int = 0

    def to_json(self) -> bytes:
        """As in the file and in messages."""
        config = {
            name: sorted(value) if isinstance(value, frozenset) else value
            for name, value in asdict(self.meta.config).items()
        }
        identities = config.pop("identities")
        value = {
            "index": self.meta.index,
            "term": self.meta.term,
            "config": config,
            "machine_version": self.machine_version,
        }
        if identities:
            # Not below `config`: a version that does not know them must be able to read the rest.
            value["identities"] = identities
        return json.dumps(value, separators=(",", ":"), sort_keys=True).encode()

    @classmethod
    def from_json(cls, data: Buffer) -> Head:
        """The opposite of `to_json`."""
        value: dict[str, Any] = json.loads(bytes(data))
        config = value["config"]
        auto_leave = config.pop("auto_leave")
        members = {name: frozenset(names) for name, names in config.items()}
        identities = frozenset((name, each) for name, each in value.get("identities", ()))
        members_then = Config(**members, auto_leave=auto_leave, identities=identities)
        meta = SnapshotMeta(value["index"], value["term"], members_then)
        return cls(meta, value["machine_version"])


class SnapshotWriter:
    """Writes a snapshot piece by piece; it is not valid before `finish`."""

    def __init__(self, file: File, head: Head) -> None:
        self._file = file
        self._crc = 0
        self._finished = False
        data = head.to_json()
        header = _HEADER.pack(_MAGIC, SNAPSHOT_VERSION, len(data), crc32c(data))
        file.truncate(0)
        file.write(header + _CRC.pack(crc32c(header)) + data)

    def write(self, piece: Buffer) -> None:
        """Add a piece of the state; an empty one adds nothing."""
        if len(piece):
            self._crc = crc32c(piece, self._crc)
            self._file.writev([_PIECE.pack(len(piece), self._crc), piece])

    def finish(self) -> None:
        """Write the end and make the file durable. A second call does nothing."""
        if not self._finished:
            self._file.write(_PIECE.pack(0, self._crc))
            self._file.fsync()
            self._finished = True


def read_head(file: File) -> tuple[Head, int]:
    """The head of an open snapshot, and the offset of its pieces."""
    size = _HEADER.size + _CRC.size
    data = file.pread(size, 0)
    if len(data) < size or crc32c(data[:-4]) != _CRC.unpack(data[-4:])[0]:
        raise DamagedFile(file.path, 0, "snapshot header: CRC-32C does not match")
    magic, version, length, crc = _HEADER.unpack_from(data)
    if magic != _MAGIC:
        raise DamagedFile(file.path, 0, f"begins with {magic!r}, a snapshot with {_MAGIC!r}")
    if version != SNAPSHOT_VERSION:
        raise UnsupportedVersion(file.path, version, SNAPSHOT_VERSION)
    head = file.pread(min(length, _HEAD_BYTES_MAX), size)
    if len(head) != length or crc32c(head) != crc:
        raise DamagedFile(file.path, size, "snapshot head: CRC-32C does not match")
    return Head.from_json(head), size + int(length)


def read_pieces(file: File, at: int) -> Iterator[bytes]:
    """The pieces from offset `at` on; raises `DamagedFile` if one is bad or the end is missing."""
    crc = 0
    while True:
        frame = file.pread(_PIECE.size, at)
        if len(frame) < _PIECE.size:
            raise DamagedFile(file.path, at, "the snapshot has no end")
        length, expected = _PIECE.unpack(frame)
        piece = file.pread(min(length, _PIECE_BYTES_MAX), at + _PIECE.size)
        crc = crc32c(piece, crc)
        if len(piece) != length or crc != expected:
            raise DamagedFile(file.path, at, "a piece of the snapshot: CRC-32C does not match")
        at += _PIECE.size + length
        if not length:
            if at != file.size():
                raise DamagedFile(file.path, at, "something follows the snapshot's end")
            return
        yield piece
