"""The hash with which Pulsar distributes keys: MurmurHash3, 32 bits, seed 0, sign bit cleared.

Key_shared subscriptions divide the slots 0 … 65535 among their consumers; the slot of a key is its
hash modulo 65536. Producers of partitioned topics choose the partition by the same hash, modulo the
number of partitions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import mmh3

from lithify.topics.messages.message import key_of, metadata_of

if TYPE_CHECKING:
    from lithify.log.segments.frame import LogEntry

__all__ = ["HASH_SLOTS", "key_hash", "key_slot", "slot_of"]

HASH_SLOTS = 65536


def key_hash(key: bytes) -> int:
    """The hash of a key, 0 … 2^31-1."""
    return mmh3.hash(key, 0, signed=False) & 0x7FFFFFFF


def key_slot(key: bytes) -> int:
    """The slot of a key, 0 … 65535."""
    return key_hash(key) % HASH_SLOTS


def slot_of(entry: LogEntry) -> int:
    """The slot of the ordering key or key; entries without one are spread by their ids."""
    metadata = metadata_of(entry.body)
    if metadata.HasField("ordering_key"):
        return key_slot(metadata.ordering_key)
    key = key_of(metadata)
    if key is None:
        key = f"{metadata.producer_name}-{metadata.sequence_id}".encode()
    return key_slot(key)
