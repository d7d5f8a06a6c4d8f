"""A node that measures its event loop: `watched_node.py ARGUMENTS OF serve`.

Every callback of the loop is timed by the CPU time of the loop's thread, so that other processes of
a busy machine do not count. For each line on standard input the process prints one JSON object:
`ms`, the longest callback since the line before, and `what`, that callback and where it was.
"""

from __future__ import annotations

import asyncio
import json
import sys
import threading
import time
import traceback
from typing import Any

from lithify.__main__ import main

LONGEST: dict[str, Any] = {"ms": 0.0, "what": ""}
SAMPLE_S = 0.003
BEGUN = [0.0]
"""When the callback that is running began."""
STACK = [0.0, ""]
"""That of a callback that runs for long: when that began, and where it was last seen."""


def watch() -> None:
    run = asyncio.Handle._run

    def timed(self: asyncio.Handle) -> None:
        callback = self._callback  # type: ignore[attr-defined]
        begun = BEGUN[0] = time.monotonic()
        before = time.thread_time_ns()
        run(self)
        held_ms = (time.thread_time_ns() - before) / 1e6
        BEGUN[0] = 0.0
        if held_ms > LONGEST["ms"]:
            stack = STACK[1] if STACK[0] == begun else ""
            LONGEST.update(ms=held_ms, what=f"{callback!r:.200}\n{stack}")

    asyncio.Handle._run = timed  # type: ignore[method-assign]


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
        LONGEST.update(ms=0.0, what="")


if __name__ == "__main__":
    watch()
    for target, arguments in ((sample, (threading.get_ident(),)), (answer, ())):
        threading.Thread(target=target, args=arguments, daemon=True).start()
    sys.argv[1:1] = ["serve"]
    main()
