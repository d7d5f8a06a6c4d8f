"""The properties of an entry that dispatch needs, from its frame or from its metadata.

The flags of the frame say whether the entry is a batch, whether it is delayed, and whether its
publish time was corrected, so that dispatch decodes few entries. Pure; for the topic and for code
that appends to one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lithify.topics.messages.message import FLAG_SHRUNK, key_of, metadata_of
from lithify.topics.subscriptions.cursor import BATCH_MESSAGES_MAX
from lithify.topics.subscriptions.key_shared_hash import key_slot

if TYPE_CHECKING:
    from lithify.log.segments.frame import LogEntry

__all__ = [
    "FLAG_AHEAD",
    "FLAG_BATCH",
    "FLAG_DELAYED",
    "due_ms_of",
    "is_spent",
    "message_count",
    "slot_of",
]

FLAG_DELAYED = 0x0100
"""The entry's metadata has a `deliver_at_time`."""

FLAG_BATCH = 0x0200
"""The entry is a batch, possibly of one message."""

FLAG_AHEAD = 0x0800
"""The producer's clock was too far ahead: the frame has an earlier time than was sent."""


def message_count(entry: LogEntry) -> int:
    """The number of messages of an entry, by its frame.

    Frames written before counts were checked may have any number; for those the metadata decides,
    within the limit.
    """
    if entry.tag <= BATCH_MESSAGES_MAX:
        return max(1, entry.tag)
    return min(max(1, metadata_of(entry.body).num_messages_in_batch), BATCH_MESSAGES_MAX)


def slot_of(entry: LogEntry) -> int:
    """The slot of the ordering key or key; entries without one are spread by their ids."""
    metadata = metadata_of(entry.body)
    if metadata.HasField("ordering_key"):
        return key_slot(metadata.ordering_key)
    key = key_of(metadata)
    if key is None:
        key = f"{metadata.producer_name}-{metadata.sequence_id}".encode()
    return key_slot(key)


def due_ms_of(entry: LogEntry) -> int:
    """The delivery time of a delayed entry, otherwise 0."""
    if not entry.flags & FLAG_DELAYED:
        return 0
    return int(metadata_of(entry.body).deliver_at_time)


def _live_slots(entry: LogEntry) -> int:
    """The messages of a batch that compaction has retained, as bits; -1 for all."""
    if entry.live is not None:
        return entry.live
    if not entry.flags & FLAG_SHRUNK:
        return -1
    return sum(1 << slot for slot in metadata_of(entry.body).compacted_batch_indexes)


def is_spent(entry: LogEntry, remaining: int | None) -> bool:
    """Are all retained messages of a partly acknowledged batch acknowledged?

    `remaining` has the bits of the messages that are not acknowledged. Messages among them may have
    been superseded after their delivery.
    """
    return remaining is not None and not remaining & _live_slots(entry)
