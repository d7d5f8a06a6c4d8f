"""The hash with which Pulsar distributes keys: MurmurHash3, 32 bits, seed 0, sign bit cleared.

Key_shared subscriptions divide the slots 0 … 65535 among their consumers; the slot of a key is its
hash modulo 65536. Producers of partitioned topics choose the partition by the same hash, modulo the
number of partitions.
"""

from __future__ import annotations

import mmh3

__all__ = ["HASH_SLOTS", "key_hash", "key_slot"]

HASH_SLOTS = 65536


def key_hash(key: bytes) -> int:
    """The hash of a key, 0 … 2^31-1."""
    return mmh3.hash(key, 0, signed=False) & 0x7FFFFFFF


def key_slot(key: bytes) -> int:
    """The slot of a key, 0 … 65535."""
    return key_hash(key) % HASH_SLOTS
