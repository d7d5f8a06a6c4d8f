"""What tests of topic compaction share: entries of every kind, and sealed segments of them."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Any

import cramjam
import numpy as np

from lithify.compaction.limits.budget import Budget
from lithify.fs import MemoryFileSystem
from lithify.log.dead_set.dead_set import Parts
from lithify.log.manifest import SegmentRef
from lithify.log.segments.frame import HEADER_BYTES, NewEntry, encode_header
from lithify.log.segments.scan import Frames
from lithify.log.segments.segment_file import SegmentHeader, SegmentWriter
from lithify.positions import pack
from lithify.topics.compaction.build_key_index import IndexTask
from lithify.topics.compaction.shrink_batches import shrink_frames
from lithify.topics.messages.message import FLAG_SHRUNK, encode_entry
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
    from collections.abc import Iterable

    from lithify.checksum import Buffer
    from lithify.fs import FileSystem

LOG_ID = bytes(range(200, 212))
DIRECTORY = "/log"
TIME_MS = 1_700_000_000_000


def metadata(**fields: Any) -> MessageMetadata:
    return MessageMetadata(
        **{"producer_name": "p", "sequence_id": 1, "publish_time": TIME_MS, **fields}
    )


def single(key: str | None = None, value: bytes = b"value", **fields: Any) -> bytes:
    return encode_entry(metadata(partition_key=key, **fields), value)


def message(key: str | None = None, value: bytes = b"value", **fields: Any) -> bytes:
    """One message as it is in a batch."""
    fields = {"payload_size": len(value), **fields}
    head: bytes = SingleMessageMetadata(partition_key=key, **fields).SerializeToString()
    return len(head).to_bytes(4, "big") + head + value


def compress(codec: int, plain: bytes) -> bytes:
    if codec == LZ4:
        return bytes(cramjam.lz4.compress_block(plain, store_size=False))
    if codec == ZLIB:
        return zlib.compress(plain)
    if codec == ZSTD:
        return bytes(cramjam.zstd.compress(plain))
    if codec == SNAPPY:
        return bytes(cramjam.snappy.compress_raw(plain))
    return plain


def batch(*messages: bytes, codec: int = NONE, **fields: Any) -> bytes:
    plain = b"".join(messages)
    if codec != NONE:
        fields = {"compression": codec, "uncompressed_size": len(plain), **fields}
    fields = {"num_messages_in_batch": len(messages), **fields}
    return encode_entry(metadata(**fields), compress(codec, plain))


def shrink(body: Buffer, live: int, *, shrunk: bool) -> bytes:
    """The batch with only the slots whose bits are set in `live`.

    `shrunk` is whether it is one that was made smaller before.
    """
    flags = FLAG_SHRUNK if shrunk else 0
    frame = encode_header(body, 0, 0, flags, 0, 0) + bytes(body)
    zero = np.zeros(1, np.int64)
    frames = Frames(np.frombuffer(bytearray(frame), np.uint8), zero, zero, base=0)
    mask = np.frombuffer(live.to_bytes(-(-live.bit_length() // 8), "little"), np.uint8)
    slots = np.flatnonzero(np.unpackbits(mask, bitorder="little")).astype(np.int32)
    width = np.full(len(slots), live.bit_length(), np.uint32)
    made = shrink_frames(frames, Parts.of(np.zeros(len(slots), np.int64), slots, width))
    return made.buffer[HEADER_BYTES:].tobytes()


def seal(
    fs: FileSystem,
    bodies: Iterable[bytes | tuple[bytes, int]],
    order: int = 0,
    segment_id: int = 1,
) -> IndexTask:
    """A sealed segment of these bodies, or of (body, frame flags), and the task to index it."""
    name, first = f"{segment_id:012d}.seg", pack(segment_id, 0)
    fs.mkdir(DIRECTORY)
    header = SegmentHeader(segment_id, first, 0, "topic", LOG_ID)
    writer = SegmentWriter.create(fs, f"{DIRECTORY}/{name}", header)
    for number, given in enumerate(bodies):
        body, flags = (given, 0) if isinstance(given, bytes) else given
        writer.append([NewEntry(body, TIME_MS + 5, flags, tag=1)], first + number, synced=0)
    footer = writer.seal()
    writer.file.close()
    segment = SegmentRef(
        segment_id,
        name,
        first,
        footer.last_position,
        footer.entries,
        footer.frame_bytes,
        footer.file_bytes,
        footer.time_min,
        footer.time_max,
        sealed=True,
    )
    return IndexTask(fs, DIRECTORY, segment, LOG_ID, order, Budget())


def sealed(*bodies: bytes | tuple[bytes, int], order: int = 0) -> IndexTask:
    """The same on a file system of its own."""
    return seal(MemoryFileSystem(), bodies, order)
