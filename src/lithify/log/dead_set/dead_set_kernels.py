"""Compiled lookup of many messages in a dead set. Pure; used by `dead_set.py`."""

from __future__ import annotations

import numpy as np

from lithify.compiled import njit
from lithify.log.key_index.key_index_kernels import sort_rows

__all__ = ["dead_messages"]


@njit(nogil=True)
def dead_messages(position, slot, starts, stops, parts, part_slots, part_starts, words):  # type: ignore[no-untyped-def]
    """Whether each message is in one of the ranges, or a dead slot of one of the parts.

    Messages may come in any order. Sorting them by position and merging with ranges and parts in
    one pass is faster than a search per message.
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
