"""The hash by which Pulsar spreads keys: MurmurHash3, 32 bits, seed 0, sign bit cleared.

Key_shared subscriptions divide 0 … 65535 among their consumers; a key's place is its hash modulo
65536. Partitioned producers choose the partition the same way, modulo the number of partitions.
"""

from __future__ import annotations

import mmh3

__all__ = ["HASH_SLOTS", "key_hash", "key_slot"]

HASH_SLOTS = 65536


def key_hash(key: bytes) -> int:
    """0 … 2^31-1."""
    return mmh3.hash(key, 0, signed=False) & 0x7FFFFFFF


def key_slot(key: bytes) -> int:
    """0 … 65535."""
    return key_hash(key) % HASH_SLOTS
