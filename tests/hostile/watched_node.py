"""A node that measures its event loop: `watched_node.py [raft] serve ARGUMENTS`.

Every callback of the loop is timed by the CPU time of the loop's thread, so that other processes of
a busy machine do not count; nor does the garbage collector, which runs wherever it happens to. For
each line on standard input the process prints one JSON object: `ms`, the longest callback since the
line before, `what`, that callback and where it was, and `iteration_ms`, the longest iteration of
the loop, which is what a client waits for that has come last.
"""

from __future__ import annotations

import asyncio
import gc
import json
import sys
import threading
import time
import traceback
from typing import Any

from lithify.__main__ import main

NOTHING: dict[str, Any] = {"ms": 0.0, "what": "", "iteration_ms": 0.0}
LONGEST = dict(NOTHING)
COLLECTING_NS = [0, 0]
"""CPU time of the loop's thread in the collector, and when the present collection began."""
SAMPLE_S = 0.003
BEGUN = [0.0]
"""When the callback that is running began."""
STACK = [0.0, ""]
"""That of a callback that runs for long: when that began, and where it was last seen."""


def busy_ns() -> int:
    return time.thread_time_ns() - COLLECTING_NS[0]


def watch(loop_thread: int) -> None:
    run, run_once = asyncio.Handle._run, asyncio.BaseEventLoop._run_once  # type: ignore[attr-defined]

    def timed(self: asyncio.Handle) -> None:
        callback = self._callback  # type: ignore[attr-defined]
        begun = BEGUN[0] = time.monotonic()
        before = busy_ns()
        run(self)
        held_ms = (busy_ns() - before) / 1e6
        BEGUN[0] = 0.0
        if held_ms > LONGEST["ms"]:
            stack = STACK[1] if STACK[0] == begun else ""
            LONGEST.update(ms=held_ms, what=f"{callback!r:.200}\n{stack}")

    def timed_once(self: asyncio.BaseEventLoop) -> None:
        before = busy_ns()
        run_once(self)
        LONGEST["iteration_ms"] = max(LONGEST["iteration_ms"], (busy_ns() - before) / 1e6)

    def collected(phase: str, _: dict[str, int]) -> None:
        if threading.get_ident() != loop_thread:
            return
        if phase == "start":
            COLLECTING_NS[1] = time.thread_time_ns()
        else:
            COLLECTING_NS[0] += time.thread_time_ns() - COLLECTING_NS[1]

    gc.callbacks.append(collected)
    asyncio.Handle._run = timed  # type: ignore[method-assign]
    asyncio.BaseEventLoop._run_once = timed_once  # type: ignore[attr-defined]


def sample(loop_thread: int) -> None:
    """Note what the loop does while it does one thing for long."""
    while True:
        time.sleep(SAMPLE_S)
        begun = BEGUN[0]
        if begun and time.monotonic() - begun > SAMPLE_S:
            frame = sys._current_frames().get(loop_thread)
            STACK[:] = [begun, "".join(traceback.format_stack(frame)[-8:])]


def answer() -> None:
    for _ in sys.stdin:
        print(json.dumps(LONGEST), flush=True)
        LONGEST.update(NOTHING)


if __name__ == "__main__":
    watch(threading.get_ident())
    for target, arguments in ((sample, (threading.get_ident(),)), (answer, ())):
        threading.Thread(target=target, args=arguments, daemon=True).start()
    main()
