"""Encodes batches that lost messages to compaction so that clients can read them.

A client reads as many messages from a batch as its metadata says, does not check whether they are
present, and numbers them from 0. So dispatch sends a batch in one of these forms:

| form | what is sent | ids are |
|---|---|---|
| stored | the entry unchanged, if every slot is present; slots not live are masked | slots |
| slots | up to the last live slot; a masked placeholder for each missing slot before it | slots |
| packed | the live messages only | ranks, from 0 |

A mask is the `ack_set` of the MESSAGE command: the client skips slots whose bits are not set. It
cannot acknowledge messages that it does not deliver. A client without batch index acknowledgements
acknowledges a batch only after every slot has been acknowledged, so a masked batch stays open
forever. Packed batches are for that case; only their ids differ, see "Durable compacted consumers"
in docs/topic-compaction.md.

The rank of a message is never larger than its slot. So a client that seeks to an id from a packed
batch, and is then sent the batch by slots, may receive messages twice and misses none.

Pure. For dispatch.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

import numpy as np

from lithify.errors import InvalidInput
from lithify.topics.messages import batch_kernels as kernels
from lithify.topics.messages.entry_flags import message_count
from lithify.topics.messages.message import (
    FLAG_SHRUNK,
    broker_metadata_bytes,
    compress,
    decompress,
    encode_entry,
    metadata_of,
    parse_entry,
)
from lithify.topics.messages.message_pb2 import SingleMessageMetadata

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lithify.checksum import Buffer
    from lithify.log.segments.frame import LogEntry
    from lithify.topics.messages.message_pb2 import MessageMetadata

__all__ = ["BatchForm", "WireBatch", "is_spent", "to_wire"]

_GONE = SingleMessageMetadata(payload_size=0, compacted_out=True).SerializeToString()
_PLACEHOLDER = len(_GONE).to_bytes(4, "big") + _GONE


class BatchForm(Enum):
    """The form in which a batch is sent."""

    STORED = "stored"
    """Unchanged if every slot is present, otherwise by slots. For non-durable readers."""
    SLOTS = "slots"
    PACKED = "packed"


@dataclass(frozen=True, slots=True)
class WireBatch:
    """A batch in the form in which it is sent."""

    body: Buffer
    messages: int
    """Messages that the client counts, including masked ones: the cost in permits."""
    ack_set: int | None
    """Bits of the messages that the client delivers; None for all."""
    slots: tuple[int, ...] | None
    """Packed: the slot of each message; None if the ids are slots."""

    def left_of(self, bits: int) -> int:
        """Convert the remaining messages of an acknowledgement, in ids as sent, to slots."""
        if self.slots is not None:
            return sum(1 << slot for rank, slot in enumerate(self.slots) if bits >> rank & 1)
        return bits & (1 << self.messages) - 1 & (-1 if self.ack_set is None else self.ack_set)


def to_wire(entry: LogEntry, remaining: int | None, form: BatchForm) -> WireBatch:
    """The batch to send for an entry: its live messages that are not acknowledged.

    `remaining` has the bits of the slots that are not acknowledged, None for all.
    """
    shrunk = bool(entry.flags & FLAG_SHRUNK)
    if not shrunk and (entry.live is None or form is BatchForm.STORED):
        bits = _intersection(entry.live, remaining)
        return WireBatch(entry.body, message_count(entry), bits, None)
    metadata, payload = parse_entry(entry.body)
    stored = metadata.compacted_batch_indexes if shrunk else range(metadata.num_messages_in_batch)
    messages = dict(_messages(metadata, payload, list(stored)))
    bits = _intersection(entry.live, remaining)
    slots = [slot for slot in messages if bits is None or bits >> slot & 1]
    if not slots:
        raise InvalidInput(f"no message is left of the batch at {entry.position}")
    if form is BatchForm.PACKED:
        body = _encoded(entry.body, metadata, [messages[slot] for slot in slots], len(slots), [])
        return WireBatch(body, len(slots), None, tuple(slots))
    count = slots[-1] + 1
    complete = len(slots) == count
    pieces: list[Buffer] = []
    following = 0
    for slot in slots:
        pieces += [_PLACEHOLDER * (slot - following), messages[slot]]
        following = slot + 1
    body = _encoded(entry.body, metadata, pieces, count, [] if complete else slots)
    return WireBatch(body, count, None if complete else sum(1 << slot for slot in slots), None)


def _intersection(live: int | None, remaining: int | None) -> int | None:
    if live is None or remaining is None:
        return remaining if live is None else live
    return live & remaining


def _messages(
    metadata: MessageMetadata, payload: Buffer, stored: list[int]
) -> Iterator[tuple[int, memoryview]]:
    """(slot, bytes) of each stored message, in order."""
    plain = decompress(metadata, payload)
    ends = np.empty(len(stored), np.int64)
    # Copied: the compiled loops accept writable arrays only.
    if not kernels.list_messages(np.frombuffer(plain, np.uint8).copy(), ends):
        raise InvalidInput(f"a batch does not have the {len(stored)} messages of its metadata")
    view, begin = memoryview(plain), 0
    for slot, end in zip(stored, ends.tolist(), strict=True):
        if end > 0:
            yield slot, view[begin:end]
        begin = abs(end)


def _encoded(
    body: Buffer, metadata: MessageMetadata, pieces: list[Buffer], count: int, slots: list[int]
) -> bytes:
    """Encode an entry of `count` messages with the metadata of the original one."""
    plain = b"".join(pieces)
    changed = type(metadata)()
    changed.CopyFrom(metadata)
    changed.num_messages_in_batch = count
    changed.compacted_batch_indexes[:] = slots
    if metadata.compression or metadata.HasField("uncompressed_size"):
        changed.uncompressed_size = len(plain)
    broker_metadata = bytes(memoryview(body)[: broker_metadata_bytes(body)])
    return broker_metadata + encode_entry(changed, compress(metadata.compression, plain))


def is_spent(entry: LogEntry, remaining: int | None) -> bool:
    """Are all retained messages of a partly acknowledged batch acknowledged?

    `remaining` has the bits of the messages that are not acknowledged. Messages among them may have
    been superseded after their delivery.
    """
    return remaining is not None and not remaining & _live_slots(entry)


def _live_slots(entry: LogEntry) -> int:
    """The messages of a batch that compaction has retained, as bits; -1 for all."""
    if entry.live is not None:
        return entry.live
    if not entry.flags & FLAG_SHRUNK:
        return -1
    return sum(1 << slot for slot in metadata_of(entry.body).compacted_batch_indexes)
