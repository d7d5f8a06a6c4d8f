"""What dispatch has to know of an entry, in the log's frame or in the entry's own metadata.

The frame's flags say whether it is a batch, whether it is delivered later, and whether its time was
not believed, so that most entries need not be opened. Pure; for the topic and for whoever appends
to one.
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
"""The entry is a batch, if of one message only."""

FLAG_AHEAD = 0x0800
"""Its producer's clock was too far ahead: it was sent with a later time than the frame has."""


def message_count(entry: LogEntry) -> int:
    """How many messages an entry has, by its frame.

    A frame that was written before counts were checked may say any number; then the metadata
    decides, within the limit.
    """
    if entry.tag <= BATCH_MESSAGES_MAX:
        return max(1, entry.tag)
    return min(max(1, metadata_of(entry.body).num_messages_in_batch), BATCH_MESSAGES_MAX)


def slot_of(entry: LogEntry) -> int:
    """The slot of an entry's ordering key or key; those without are spread."""
    metadata = metadata_of(entry.body)
    if metadata.HasField("ordering_key"):
        return key_slot(metadata.ordering_key)
    key = key_of(metadata)
    if key is None:
        key = f"{metadata.producer_name}-{metadata.sequence_id}".encode()
    return key_slot(key)


def due_ms_of(entry: LogEntry) -> int:
    """When it is to be delivered, 0 for at once."""
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
    """Is everything acknowledged that compaction has retained of a batch? Of it `remaining` is not.

    What remains may have been superseded since, and what was acknowledged may not.
    """
    return remaining is not None and not remaining & _live_slots(entry)
