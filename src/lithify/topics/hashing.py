"""The hash by which Pulsar spreads keys: MurmurHash3, 32 bits, seed 0, sign bit cleared.

Key_shared subscriptions divide 0 … 65535 among their consumers; a key's place is its hash modulo
65536. Partitioned producers choose the partition the same way, modulo the number of partitions.
"""

from __future__ import annotations

__all__ = ["HASH_SLOTS", "key_hash", "key_slot"]

HASH_SLOTS = 65536

_MASK = 0xFFFFFFFF


def _rotate(value: int, bits: int) -> int:
    return (value << bits | value >> (32 - bits)) & _MASK


def key_hash(key: bytes) -> int:
    """0 … 2^31-1."""
    state = 0
    whole = len(key) & ~3
    for at in range(0, whole, 4):
        block = int.from_bytes(key[at : at + 4], "little")
        block = _rotate(block * 0xCC9E2D51 & _MASK, 15) * 0x1B873593 & _MASK
        state = (_rotate(state ^ block, 13) * 5 + 0xE6546B64) & _MASK
    tail = key[whole:]
    if tail:
        block = int.from_bytes(tail, "little")
        state ^= _rotate(block * 0xCC9E2D51 & _MASK, 15) * 0x1B873593 & _MASK
    state ^= len(key)
    state = (state ^ state >> 16) * 0x85EBCA6B & _MASK
    state = (state ^ state >> 13) * 0xC2B2AE35 & _MASK
    return (state ^ state >> 16) & 0x7FFFFFFF


def key_slot(key: bytes) -> int:
    """0 … 65535."""
    return key_hash(key) % HASH_SLOTS
