"""Batches that lost messages to compaction, as clients can read them.

A client reads as many messages from a batch as its metadata says, without looking whether they are
there, and counts them from 0. So on the way out a batch gets another form:

| form | what is sent | ids are |
|---|---|---|
| stored | the entry as it is, for every slot is there; those that are not live are masked | slots |
| slots | up to the last live slot; a masked placeholder for each gone one before it | slots |
| packed | the live ones only | ranks, from 0 |

A mask is the `ack_set` of the MESSAGE command: the client skips slots whose bits are not set. What
it does not deliver it cannot acknowledge, and one that does not send batch index acknowledgements
speaks of a batch only when every slot has been acknowledged: for it a masked batch stays open for
ever. Packed batches are for that case and are told apart by nothing but their ids, see "Durable
compacted consumers" in docs/topic-compaction.md.

The rank of a message is never larger than its slot. So whoever seeks to an id from a packed batch
and is then sent the batch by slots sees messages again, and misses none.

Pure. For dispatch.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

import numpy as np

from lithify.errors import InvalidInput
from lithify.topics.messages import batch_kernels as kernels
from lithify.topics.messages.message import (
    FLAG_SHRUNK,
    broker_metadata_bytes,
    compress,
    decompress,
    encode_entry,
    parse_entry,
)
from lithify.topics.messages.message_pb2 import SingleMessageMetadata
from lithify.topics.subscriptions.entry_flags import message_count

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lithify.checksum import Buffer
    from lithify.log.segments.frame import LogEntry
    from lithify.topics.messages.message_pb2 import MessageMetadata

__all__ = ["BatchForm", "WireBatch", "to_wire"]

_GONE = SingleMessageMetadata(payload_size=0, compacted_out=True).SerializeToString()
_PLACEHOLDER = len(_GONE).to_bytes(4, "big") + _GONE


class BatchForm(Enum):
    """How a batch goes out."""

    STORED = "stored"
    """As it is, if every slot is there; by slots otherwise. For those who do not acknowledge."""
    SLOTS = "slots"
    PACKED = "packed"


@dataclass(frozen=True, slots=True)
class WireBatch:
    """What to send for an entry."""

    body: Buffer
    messages: int
    """That the client counts, masked ones too: so many permits it costs."""
    ack_set: int | None
    """Bits of the messages that the client is to deliver; None for all."""
    slots: tuple[int, ...] | None
    """Of a packed batch: the slot of each message; None where they are numbered by slots."""

    def left_of(self, bits: int) -> int:
        """The slots that are left when the client says by `bits` what of this is left."""
        if self.slots is not None:
            return sum(1 << slot for rank, slot in enumerate(self.slots) if bits >> rank & 1)
        return bits & (1 << self.messages) - 1 & (-1 if self.ack_set is None else self.ack_set)


def to_wire(entry: LogEntry, remaining: int | None, form: BatchForm) -> WireBatch:
    """What to send of an entry: its live messages, of them those that remain to be delivered.

    `remaining` are the slots that are not acknowledged yet, None for all.
    """
    shrunk = bool(entry.flags & FLAG_SHRUNK)
    if not shrunk and (entry.live is None or form is BatchForm.STORED):
        wanted = _both(entry.live, remaining)
        return WireBatch(entry.body, message_count(entry), wanted, None)
    metadata, payload = parse_entry(entry.body)
    stored = metadata.compacted_batch_indexes if shrunk else range(metadata.num_messages_in_batch)
    found = dict(_messages(metadata, payload, list(stored)))
    wanted = _both(entry.live, remaining)
    slots = [slot for slot in found if wanted is None or wanted >> slot & 1]
    if not slots:
        raise InvalidInput(f"no message is left of the batch at {entry.position}")
    if form is BatchForm.PACKED:
        body = _encoded(entry.body, metadata, [found[slot] for slot in slots], len(slots), [])
        return WireBatch(body, len(slots), None, tuple(slots))
    count = slots[-1] + 1
    whole = len(slots) == count
    pieces: list[Buffer] = []
    following = 0
    for slot in slots:
        pieces += [_PLACEHOLDER * (slot - following), found[slot]]
        following = slot + 1
    body = _encoded(entry.body, metadata, pieces, count, [] if whole else slots)
    return WireBatch(body, count, None if whole else sum(1 << slot for slot in slots), None)


def _both(live: int | None, remaining: int | None) -> int | None:
    if live is None or remaining is None:
        return remaining if live is None else live
    return live & remaining


def _messages(
    metadata: MessageMetadata, payload: Buffer, stored: list[int]
) -> Iterator[tuple[int, memoryview]]:
    """(slot, bytes) of each message that is there, in order."""
    plain = decompress(metadata, payload)
    ends = np.empty(len(stored), np.int64)
    # Copied, because compiled loops know writable arrays only.
    if not kernels.list_messages(np.frombuffer(plain, np.uint8).copy(), ends):
        raise InvalidInput(f"a batch does not have the {len(stored)} messages it should have")
    view, begin = memoryview(plain), 0
    for slot, end in zip(stored, ends.tolist(), strict=True):
        if end > 0:
            yield slot, view[begin:end]
        begin = abs(end)


def _encoded(
    body: Buffer, metadata: MessageMetadata, pieces: list[Buffer], count: int, slots: list[int]
) -> bytes:
    """An entry of `count` messages with the metadata of another one."""
    plain = b"".join(pieces)
    changed = type(metadata)()
    changed.CopyFrom(metadata)
    changed.num_messages_in_batch = count
    changed.compacted_batch_indexes[:] = slots
    if metadata.compression or metadata.HasField("uncompressed_size"):
        changed.uncompressed_size = len(plain)
    before = bytes(memoryview(body)[: broker_metadata_bytes(body)])
    return before + encode_entry(changed, compress(metadata.compression, plain))
