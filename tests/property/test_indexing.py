"""The compiled indexer and a naive one, on the generated protobuf code, say the same."""

from __future__ import annotations

import base64
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import cramjam
import numpy as np
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from lithify.fs import MemoryFileSystem
from lithify.log.key_index.key_index import COLUMNS, ORDER_EVENT, ORDER_PUBLISH, IndexFacts
from lithify.topics.compaction.build_key_index import open_index, run_index
from lithify.topics.compaction.key_index_flags import (
    CHUNK_LAST,
    CHUNK_PART,
    KEYLESS,
    OPAQUE,
    TOMBSTONE,
)
from lithify.topics.messages.key_siphash import key_hash
from lithify.topics.messages.message import FLAG_SHRUNK
from lithify.topics.messages.message_pb2 import (
    LZ4,
    NONE,
    SNAPPY,
    ZLIB,
    ZSTD,
    EncryptionKeys,
    KeyValue,
    MessageMetadata,
    SingleMessageMetadata,
)
from tests.unit.topics.segments import LOG_ID, TIME_MS, batch, message, seal, single

if TYPE_CHECKING:
    from collections.abc import Callable

Row = tuple[int, ...]
"""The columns in their order."""

HASH, POSITION, SLOT, FLAGS, EVENT, GROUP = slice(0, 2), 2, 3, 6, 8, 9
TIME_MAX = 2**63 - 1
WORD = 2**64 - 1

KEYS = st.sampled_from(["", "a", "b", "c", "Zm9v", "Zm8=", "a longer key, of some words"])
VALUES = st.binary(max_size=20)
TIMES = st.integers(0, 5) | st.integers(0, 2**64 - 1)
PAIRS = st.lists(st.builds(KeyValue, key=st.text(max_size=3), value=st.just("v")), max_size=2)
ENCRYPTION = st.lists(st.builds(EncryptionKeys, key=st.just("k"), value=VALUES), min_size=1)


@st.composite
def some(draw: Callable[..., Any], /, **fields: st.SearchStrategy[Any]) -> dict[str, Any]:
    """Some of these fields, each as often there as not."""
    return {name: draw(value) for name, value in fields.items() if draw(st.booleans())}


MESSAGE_FIELDS = {
    "key": KEYS,
    "value": VALUES,
    "properties": PAIRS,
    "event_time": TIMES,
    "partition_key_b64_encoded": st.booleans(),
    "null_value": st.booleans(),
    "null_partition_key": st.sampled_from([False, False, False, True]),
}
SINGLE = some(
    **MESSAGE_FIELDS,
    publish_time=TIMES,
    compression=st.sampled_from([NONE, LZ4, ZSTD]),
    uncompressed_size=st.integers(0, 2),
    encryption_keys=ENCRYPTION,
    ordering_key=VALUES,
).map(lambda fields: single(**fields))
MESSAGE = some(**MESSAGE_FIELDS, sequence_id=TIMES, compacted_out=st.just(True)).map(
    lambda fields: message(**fields)
)
CODECS = st.sampled_from([NONE, LZ4, ZLIB, ZSTD, SNAPPY])


@st.composite
def batches(draw: Callable[..., Any]) -> tuple[bytes, int] | bytes:
    messages = draw(st.lists(MESSAGE, min_size=1, max_size=4))
    wrong = some(
        encryption_keys=ENCRYPTION,
        num_messages_in_batch=st.integers(-1, 5),
        uncompressed_size=st.integers(0, 50),
    )
    fields = draw(some(publish_time=TIMES, event_time=TIMES, partition_key=KEYS))
    fields |= draw(st.just({}) | wrong)
    shrunk = draw(st.booleans())
    if shrunk:
        slots = draw(st.lists(st.integers(0, 9), min_size=len(messages), unique=True))
        fields |= {"num_messages_in_batch": 10, "compacted_batch_indexes": sorted(slots)}
    return batch(*messages, codec=draw(CODECS), **fields), FLAG_SHRUNK if shrunk else 0


@st.composite
def chunks(draw: Callable[..., Any]) -> bytes:
    count = draw(st.integers(1, 3))
    fields = draw(some(key=KEYS, event_time=TIMES, null_value=st.booleans()))
    uuid, number = draw(st.sampled_from(["p-1", "p-2"])), draw(st.integers(-1, 3))
    return single(**fields, uuid=uuid, num_chunks_from_msg=count, chunk_id=number)


MARKER = st.just(single("a", marker_type=1))
ENTRY = SINGLE | SINGLE | batches() | batches() | chunks() | MARKER | VALUES


def key_of(fields: MessageMetadata | SingleMessageMetadata) -> bytes | None:
    if not fields.HasField("partition_key") or fields.null_partition_key:
        return None
    key = fields.partition_key.encode()
    if fields.partition_key_b64_encoded:
        try:
            decoded = base64.b64decode(key, validate=True)
        except ValueError:
            return key
        return decoded if base64.b64encode(decoded) == key else key
    return key


def spread(position: int) -> tuple[int, int]:
    word = position * 0x9E3779B97F4A7C15 & WORD
    word = (word ^ word >> 32) * 0xD6E8FEB86659FD93 & WORD
    return word ^ word >> 32, position


def open_lz4(data: bytes) -> bytes:
    room = bytearray(1000)
    return bytes(room[: cramjam.lz4.decompress_block_into(data, room)])


def opened(fields: MessageMetadata, payload: bytes) -> bytes | None:
    openers: dict[int, Callable[[bytes], Any]] = {
        NONE: bytes,
        LZ4: open_lz4,
        ZLIB: zlib.decompress,
        ZSTD: cramjam.zstd.decompress,
        SNAPPY: cramjam.snappy.decompress_raw,
    }
    try:
        plain = bytes(openers[fields.compression](payload))
    except (cramjam.DecompressionError, zlib.error):
        return None
    if fields.compression != NONE and len(plain) != fields.uncompressed_size:
        return None
    return plain


@dataclass
class Naive:
    """Rows one after the other, as the words of the documentation have it."""

    rows: list[Row]
    messages: int = 0
    markers: int = 0
    opaque: int = 0

    def put(
        self,
        position: int,
        slot: int,
        slots: int,
        length: int,
        flags: int,
        key: bytes | None,
        publish: int,
        event: int,
        group: int,
    ) -> None:
        if key is None and not flags & OPAQUE:
            flags |= KEYLESS
        high, low = spread(position) if key is None else key_hash(key, LOG_ID)
        times = min(publish, TIME_MAX), min(event, TIME_MAX)
        self.rows.append((high, low, position, slot, slots, length, flags, *times, group))
        self.messages += 1

    def add(self, position: int, body: bytes, frame_flags: int) -> None:
        at = 6 if body[:2] == b"\x0e\x01" else 0
        size = int.from_bytes(body[at : at + 4], "big")
        head, payload = body[at + 4 : at + 4 + size], body[at + 4 + size :]
        length = 32 + len(body)
        try:
            fields = MessageMetadata.FromString(head)
            whole = len(body) >= at + 4 + size
        except DecodeError:
            whole = False
        if not whole:
            self.opaque += 1
            self.put(position, -1, 1, length, OPAQUE, None, TIME_MS + 5, 0, 0)
            return
        if fields.HasField("marker_type"):
            self.messages += 1
            self.markers += 1
        elif fields.HasField("num_messages_in_batch"):
            self.add_batch(position, fields, payload, length, frame_flags)
        else:
            self.add_single(position, fields, payload, length)

    def put_opaque(self, position: int, fields: MessageMetadata, length: int) -> None:
        self.opaque += 1
        group = max(0, fields.num_messages_in_batch) * fields.HasField("num_messages_in_batch")
        times = fields.publish_time, fields.event_time
        self.put(position, -1, 1, length, OPAQUE, None, *times, group)

    def add_single(
        self, position: int, fields: MessageMetadata, payload: bytes, length: int
    ) -> None:
        flags, group, count = 0, 0, fields.num_chunks_from_msg
        if count > 1:
            if not 0 <= fields.chunk_id < count:
                self.put_opaque(position, fields, length)
                return
            flags = CHUNK_LAST if fields.chunk_id == count - 1 else CHUNK_PART
            group = key_hash(fields.uuid.encode(), LOG_ID)[0]
            empty = fields.null_value
        elif fields.compression != NONE:
            empty = fields.null_value or fields.uncompressed_size == 0
        else:
            tags = (0, 16) if fields.encryption_keys else (0,)
            empty = fields.null_value or len(payload) in tags
        flags |= TOMBSTONE * empty
        times = fields.publish_time, fields.event_time
        self.put(position, -1, 1, length, flags, key_of(fields), *times, group)

    def add_batch(
        self, position: int, fields: MessageMetadata, payload: bytes, length: int, frame_flags: int
    ) -> None:
        plain = None if fields.encryption_keys else opened(fields, payload)
        slots = list(range(fields.num_messages_in_batch))
        if frame_flags & FLAG_SHRUNK:
            slots = list(fields.compacted_batch_indexes)
            if any(slot >= fields.num_messages_in_batch for slot in slots):
                slots = []
        found: list[tuple[int, int, SingleMessageMetadata]] = []
        at, before = 0, 0
        for slot in slots if plain else ():
            assert plain is not None
            size = int.from_bytes(plain[at : at + 4], "big")
            try:
                each = SingleMessageMetadata.FromString(plain[at + 4 : at + 4 + size])
            except DecodeError:
                break
            at += 4 + size + each.payload_size
            if at > len(plain):
                break
            until = length * at // len(plain)
            found.append((slot, 0 if each.compacted_out else until - before, each))
            before = before if each.compacted_out else until
        if not slots or len(found) < len(slots):
            self.put_opaque(position, fields, length)
            return
        found = [row for row in found if not row[2].compacted_out]
        held = len(found)
        for number, (slot, share, each) in enumerate(found, 1):
            left_over = length - before if number == held else 0
            flags = TOMBSTONE * (each.null_value or each.payload_size == 0)
            times = fields.publish_time, each.event_time
            size = share + left_over
            self.put(position, slot, len(slots), size, flags, key_of(each), *times, 0)

    def reduced(self, order: int) -> list[Row]:
        """Without what can never win, in the order of the file."""

        def rank(row: Row) -> tuple[int, ...]:
            return (row[EVENT] if order == ORDER_EVENT else 0, row[POSITION], row[SLOT])

        keyed = [row for row in self.rows if not row[FLAGS] & (KEYLESS | OPAQUE)]
        candidates = [row for row in keyed if not row[FLAGS] & CHUNK_PART]
        winners = {
            max((r for r in candidates if r[HASH] == row[HASH]), key=rank) for row in candidates
        }
        lost = set(candidates) - winners
        gone = {row for row in lost if not row[FLAGS] & CHUNK_LAST}
        for row in set(keyed) - set(candidates):
            lasts = [
                other
                for other in candidates
                if other[FLAGS] & CHUNK_LAST
                and (other[HASH], other[GROUP]) == (row[HASH], row[GROUP])
                and other[POSITION] > row[POSITION]
            ]
            if lasts and min(lasts, key=lambda last: last[POSITION]) in lost:
                gone.add(row)
        kept = [row for row in self.rows if row not in gone]
        return sorted(kept, key=lambda row: (row[0] >> 56, row[POSITION], row[SLOT]))


@given(st.lists(ENTRY, max_size=12), st.sampled_from([ORDER_PUBLISH, ORDER_EVENT]))
def test_the_index_has_the_rows_of_a_naive_one(
    entries: list[bytes | tuple[bytes, int]], order: int
) -> None:
    task = seal(MemoryFileSystem(), entries, order)
    naive = Naive([])
    for number, given_entry in enumerate(entries):
        body, flags = (given_entry, 0) if isinstance(given_entry, bytes) else given_entry
        naive.add(task.segment.first_position + number, body, flags)
    facts = run_index(task, lambda: None)
    assert facts == IndexFacts(order, naive.messages, naive.markers, naive.opaque)
    with open_index(task) as index:
        rows = index.read()
    found = list(zip(*(getattr(rows, name).tolist() for name in COLUMNS), strict=True))
    assert found == naive.reduced(order)


@given(st.data())
def test_no_bytes_lead_it_astray(data: st.DataObject) -> None:
    """Whatever is in an entry, each has its rows, whole, and they stay inside the frame."""
    bodies: list[tuple[bytes, int]] = []
    for given_entry in data.draw(st.lists(ENTRY, min_size=1, max_size=5)):
        body = bytearray(given_entry if isinstance(given_entry, bytes) else given_entry[0])
        for _ in range(data.draw(st.integers(0, 4)) if body else 0):
            body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
        end = data.draw(st.integers(0, len(body)) | st.just(len(body)))
        bodies.append((bytes(body[:end]), data.draw(st.sampled_from([0, FLAG_SHRUNK]))))
    task = seal(MemoryFileSystem(), bodies)
    facts = run_index(task, lambda: None)
    with open_index(task) as index:
        rows = index.read()
    assert facts.messages - facts.markers >= len(rows) >= facts.opaque
    sizes = np.array([32 + len(body) for body, _ in bodies])
    numbers = rows.position - task.segment.first_position
    assert (np.bincount(numbers, rows.length, len(bodies)) <= sizes).all()
    assert (rows.slots >= 1).all()
