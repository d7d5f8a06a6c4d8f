"""Prints which compiled code two small runs load after `warm_up`; for a process of its own."""

from __future__ import annotations

import random
import sys

from numba.core.dispatcher import Dispatcher

from lithify.clock import ManualClock
from lithify.fs import MemoryFileSystem
from lithify.topics.compaction.warm_up import warm_up
from lithify.topics.definitions.compaction_settings import TopicCompactionSettings
from lithify.topics.messages.message_pb2 import LZ4, NONE, ZSTD
from tests.topic_life import Life
from tests.unit.topics.segments import batch, message, single


def loaded() -> set[tuple[str, str, str]]:
    """(module, function, types) of everything that is there in machine code."""
    return {
        (function.py_func.__module__, function.py_func.__name__, str(types))
        for name, module in tuple(sys.modules.items())
        if name.startswith("lithify.")
        for function in vars(module).values()
        if isinstance(function, Dispatcher)
        for types in function.overloads
    }


def main() -> None:
    warm_up()
    before = loaded()
    life = Life(MemoryFileSystem(), random.Random(1), ManualClock(), TopicCompactionSettings())
    for text in ("first", "second"):
        for codec in (NONE, LZ4, ZSTD):
            messages = [message(key, text.encode()) for key in ("a", "b", f"{text} {codec}")]
            life.append([(batch(*messages, codec=codec), len(messages))])
        life.append([(single("a"), 0), (single("c", b""), 0), (single(), 0)])
        assert life.compact().result == "done"
    print(*sorted(loaded() - before), sep="\n")


if __name__ == "__main__":
    main()
