"""The properties of an entry that dispatch needs, from its frame or from its metadata.

The flags of the frame say whether the entry is a batch, whether it is delayed, and whether its
publish time was corrected, so that dispatch decodes few entries. Pure; for the topic and for code
that appends to one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lithify.topics.messages.message import metadata_of

if TYPE_CHECKING:
    from lithify.log.segments.frame import LogEntry

__all__ = [
    "BATCH_MESSAGES_MAX",
    "FLAG_AHEAD",
    "FLAG_BATCH",
    "FLAG_DELAYED",
    "due_ms_of",
    "message_count",
]

BATCH_MESSAGES_MAX = 2**20
"""Maximum number of messages in a batch. A message takes at least 6 bytes, so an uncompressed entry
of 5 MiB has fewer."""

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


def due_ms_of(entry: LogEntry) -> int:
    """The delivery time of a delayed entry, otherwise 0."""
    if not entry.flags & FLAG_DELAYED:
        return 0
    return int(metadata_of(entry.body).deliver_at_time)
