"""Compiled loop that asks a dead set about many messages at once. Pure; for `dead_set.py`."""

from __future__ import annotations

import numpy as np

from lithify.compiled import njit
from lithify.log.keyindex.key_index_kernels import sort_rows

__all__ = ["dead_messages"]


@njit(nogil=True)
def dead_messages(position, slot, starts, stops, parts, part_slots, part_starts, words):  # type: ignore[no-untyped-def]
    """Whether each message is in one of the ranges, or in a part whose mask does not have its slot.

    Messages may come in any order. They are sorted by position first, which takes less time than
    to look for each of them: the rest is one walk over messages, ranges and parts side by side.
    """
    dead = np.zeros(position.size, dtype=np.bool_)
    at, part = 0, 0
    for message in sort_rows(np.arange(position.size), position):
        here = position[message]
        while at < stops.size and stops[at] <= here:
            at += 1
        if at < starts.size and starts[at] <= here:
            dead[message] = True
            continue
        while part < parts.size and parts[part] < here:
            part += 1
        number = np.int64(slot[message])
        if part < parts.size and parts[part] == here and number >= 0:
            if number >= np.int64(part_slots[part]):
                dead[message] = True
            else:
                word = words[part_starts[part] + (number >> 6)]
                dead[message] = (word >> np.uint64(number & 63)) & np.uint64(1) == np.uint64(0)
    return dead
