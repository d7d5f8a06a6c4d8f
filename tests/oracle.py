"""What a compacted topic must hold, found the naive way: one message after the other, in dicts.

Nothing of the project is used but the generated code of the message format, so that both can be
wrong in the same way only by chance. `messages_of` opens an entry; `Oracle` replays a topic:

    oracle = Oracle()
    oracle.sent(position, body)            as it is appended
    oracle.run(rules, horizon, now_ms)     what a run must make of it
    oracle.kept                            what a compacted reader must see up to that horizon
    oracle.view()                          the same with what came after it
"""

from __future__ import annotations

import base64
import binascii
import zlib
from dataclasses import dataclass, field
from itertools import pairwise

import cramjam
from google.protobuf.message import DecodeError

from lithify.topics.messages import message_pb2 as pb

__all__ = ["Oracle", "Rules", "Sent", "messages_of"]

SHRUNK = 0x0400
CIPHER_TAG_BYTES = 16
DAY_MS = 86_400_000


@dataclass(frozen=True)
class Sent:
    """A message, or an entry that cannot be opened."""

    position: int
    slot: int
    key: bytes | None
    content: bytes
    """Its own metadata and its value, or the whole entry where it is alone in it."""
    tombstone: bool = False
    publish_ms: int = 0
    event_ms: int = 0
    opaque: bool = False
    uuid: str = ""
    """Of the chunked message that it is a part of."""
    completes: bool = False
    """It is the last of its chunks."""
    marker: bool = False

    @property
    def id(self) -> tuple[int, int]:
        return self.position, self.slot

    @property
    def is_part(self) -> bool:
        return bool(self.uuid) and not self.completes


@dataclass(frozen=True)
class Rules:
    """The settings that decide what is live."""

    by_event: bool = False
    keep_keyless: bool = True
    tombstone_retention_ms: int = 0
    key_ttl_ms: int = 0


@dataclass
class Oracle:
    """A topic's messages as a list; see the module."""

    kept: list[Sent] = field(default_factory=list)
    waiting: list[Sent] = field(default_factory=list)
    """Above the last horizon, markers and all."""
    horizon: int = -1
    last: int = -1
    marks: list[tuple[int, int]] = field(default_factory=list)
    """(last position, time) of runs at least a day apart, since parts have been waiting."""

    def sent(self, position: int, body: bytes) -> None:
        self.waiting += messages_of(position, body)
        self.last = position

    def view(self) -> list[Sent]:
        return [*self.kept, *self.waiting]

    def values(self) -> dict[bytes, Sent]:
        """The newest message of each key, tombstones left out."""
        newest: dict[bytes, Sent] = {}
        for message in self.view():
            if message.key is not None and not message.is_part:
                newest[message.key] = message
        return {key: message for key, message in newest.items() if not message.tombstone}

    def run(self, rules: Rules, horizon: int, now_ms: int) -> None:
        candidates = [
            *self.kept,
            *(each for each in self.waiting if each.position <= horizon and not each.marker),
        ]
        if not self.marks or now_ms - self.marks[-1][1] >= DAY_MS:
            self.marks.append((self.last, now_ms))
        # What came before a mark, and of which nothing came in the day up to the next one.
        old = [end for (end, _), (later, _) in pairwise(self.marks) if later <= horizon]
        self.kept = replay(candidates, rules, now_ms, max(old, default=-1))
        if not any(last_chunk_of(at, self.kept) is None for at in range(len(self.kept))):
            self.marks.clear()
        self.waiting = [each for each in self.waiting if each.position > horizon]
        self.horizon = horizon


def replay(candidates: list[Sent], rules: Rules, now_ms: int, given_up: int = -1) -> list[Sent]:
    """Which of these messages, in their order, are live.

    Of parts up to position `given_up` only those whose last chunk is there.
    """
    newest: dict[bytes, Sent] = {}
    live: set[tuple[int, int]] = set()
    for each in candidates:
        if each.opaque or (each.key is None and rules.keep_keyless):
            live.add(each.id)
        elif each.key is not None and not each.is_part:
            best = newest.get(each.key)
            if best is None or not rules.by_event or each.event_ms >= best.event_ms:
                newest[each.key] = each
    for each in newest.values():
        limit_ms = rules.tombstone_retention_ms if each.tombstone else rules.key_ttl_ms
        expires = each.tombstone or rules.key_ttl_ms
        at_once = each.tombstone and not limit_ms
        if not expires or (not at_once and each.publish_ms > now_ms - limit_ms):
            live.add(each.id)
    for at, part in enumerate(candidates):
        if part.is_part and part.key is not None and not part.opaque:
            last = last_chunk_of(at, candidates)
            if part.position > given_up if last is None else last.id in live:
                live.add(part.id)
    return [each for each in candidates if each.id in live]


def last_chunk_of(at: int, messages: list[Sent]) -> Sent | None:
    """Of the message that number `at` is a part of; itself, if it is none."""
    part = messages[at]
    if not part.is_part or part.key is None or part.opaque:
        return part
    lasts = (
        other
        for other in messages[at + 1 :]
        if other.completes and (other.uuid, other.key) == (part.uuid, part.key)
    )
    return next(lasts, None)


def messages_of(
    position: int, body: bytes, *, shrunk: bool = False, live: int | None = None
) -> list[Sent]:
    """The messages of an entry; of a batch those that `live` has a bit for."""
    rest = body
    if rest[:2] == b"\x0e\x02":
        rest = rest[6 + int.from_bytes(rest[2:6], "big") :]
    if rest[:2] == b"\x0e\x01":
        rest = rest[6:]
    size = int.from_bytes(rest[:4], "big")
    head, payload = rest[4 : 4 + size], rest[4 + size :]
    whole = [Sent(position, -1, None, body, opaque=True)]
    if len(rest) < 4 or len(head) < size:
        return whole
    try:
        fields = pb.MessageMetadata.FromString(head)
    except DecodeError:
        return whole
    if not fields.IsInitialized():
        return whole
    if fields.HasField("marker_type"):
        return [Sent(position, -1, None, body, marker=True)]
    if not fields.HasField("num_messages_in_batch"):
        return [single_of(position, body, fields, payload)]
    if fields.encryption_keys:
        return whole
    found = batch_of(position, fields, payload, shrunk=shrunk)
    if found is None:
        return whole
    return [each for each in found if live is None or live >> each.slot & 1]


def single_of(position: int, body: bytes, fields: pb.MessageMetadata, payload: bytes) -> Sent:
    chunks, empty = fields.num_chunks_from_msg, fields.null_value
    uuid, completes = "", False
    if chunks > 1 and not 0 <= fields.chunk_id < chunks:
        return Sent(position, -1, None, body, opaque=True)
    if chunks > 1:
        uuid, completes = fields.uuid, fields.chunk_id == chunks - 1
    elif fields.compression != pb.NONE:
        empty = empty or fields.uncompressed_size == 0
    else:
        empty = empty or not payload
        empty = empty or (bool(fields.encryption_keys) and len(payload) == CIPHER_TAG_BYTES)
    times = fields.publish_time, fields.event_time
    return Sent(position, -1, key_of(fields), body, empty, *times, uuid=uuid, completes=completes)


def batch_of(
    position: int, fields: pb.MessageMetadata, payload: bytes, *, shrunk: bool
) -> list[Sent] | None:
    plain = opened(fields, payload)
    if plain is None or fields.num_messages_in_batch < 1:
        return None
    count = fields.num_messages_in_batch
    slots = list(fields.compacted_batch_indexes) if shrunk else list(range(count))
    found: list[Sent] = []
    at = 0
    for slot in slots:
        begin = at + 4 + int.from_bytes(plain[at : at + 4], "big")
        try:
            each = pb.SingleMessageMetadata.FromString(plain[at + 4 : begin])
        except DecodeError:
            return None
        end = begin + each.payload_size
        if end > len(plain) or not each.IsInitialized():
            return None
        if not each.compacted_out:
            found.append(
                Sent(
                    position,
                    slot,
                    key_of(each),
                    plain[at:end],
                    each.null_value or each.payload_size == 0,
                    fields.publish_time,
                    each.event_time,
                )
            )
        at = end
    return found


def opened(fields: pb.MessageMetadata, payload: bytes) -> bytes | None:
    """The payload of a batch, None if it is not compressed as it says."""
    try:
        if fields.compression == pb.LZ4:
            room = bytearray(fields.uncompressed_size + 1)
            plain = bytes(room[: cramjam.lz4.decompress_block_into(payload, room)])
        elif fields.compression == pb.ZLIB:
            plain = zlib.decompress(payload)
        elif fields.compression == pb.ZSTD:
            plain = bytes(cramjam.zstd.decompress(payload))
        elif fields.compression == pb.SNAPPY:
            plain = bytes(cramjam.snappy.decompress_raw(payload))
        else:
            return payload
    except (cramjam.DecompressionError, zlib.error):
        return None
    return plain if len(plain) == fields.uncompressed_size else None


def key_of(fields: pb.MessageMetadata | pb.SingleMessageMetadata) -> bytes | None:
    if not fields.HasField("partition_key") or fields.null_partition_key:
        return None
    text = fields.partition_key.encode()
    if fields.partition_key_b64_encoded:
        try:
            key = base64.b64decode(text, validate=True)
        except binascii.Error:
            return text
        return key if base64.b64encode(key) == text else text
    return text
