"""Compiled loops over the keys of a key-value state: a hash table of key numbers. Pure.

Keys are concatenated in an array of bytes; `starts` has the offset of each and the end of the last.
A slot has the number of a key, or -1; a key is in the first free slot from its hash on. The number
of slots is a power of two, at least twice the number of keys.

The hash uses a secret of the process, so that a client cannot choose keys that collide.
"""

from __future__ import annotations

import numpy as np

from lithify.compiled import njit

__all__ = ["fill_slots", "find_key"]

_HIGH = np.uint64(32)


@njit(nogil=True)
def _hash(data, start, stop, secret):  # type: ignore[no-untyped-def]
    mixed, factor = np.uint64(secret), np.uint64(secret) | np.uint64(1)
    for at in range(start, stop):
        mixed = (mixed ^ np.uint64(data[at])) * factor
        mixed ^= mixed >> _HIGH
    return mixed


@njit(nogil=True)
def fill_slots(keys, starts, slots, secret):  # type: ignore[no-untyped-def]
    """Insert the number of each key."""
    mask = np.uint64(slots.size - 1)
    for number in range(starts.size - 1):
        slot = _hash(keys, starts[number], starts[number + 1], secret) & mask
        while slots[slot] >= 0:
            slot = (slot + np.uint64(1)) & mask
        slots[slot] = number


@njit(nogil=True)
def find_key(keys, starts, slots, secret, key):  # type: ignore[no-untyped-def]
    """The number of a key, -1 if it is absent."""
    mask = np.uint64(slots.size - 1)
    size = len(key)
    slot = _hash(key, 0, size, secret) & mask
    while slots[slot] >= 0:
        number = slots[slot]
        start = starts[number]
        if starts[number + 1] - start == size:
            at = 0
            while at < size and keys[start + at] == key[at]:
                at += 1
            if at == size:
                return np.int64(number)
        slot = (slot + np.uint64(1)) & mask
    return np.int64(-1)
