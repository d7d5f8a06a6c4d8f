"""A node that measures its event loop: `watched_node.py ARGUMENTS OF serve`.

Every callback of the loop is timed by the CPU time of the loop's thread, so that other processes of
a busy machine do not count. For each line on standard input the process prints one JSON object:
`ms`, the longest callback since the line before, and `what`, that callback.
"""

from __future__ import annotations

import asyncio
import json
import sys
import threading
import time

from lithify.cli.main import main

LONGEST = {"ms": 0.0, "what": ""}


def watch() -> None:
    run = asyncio.Handle._run  # type: ignore[attr-defined]

    def timed(self: asyncio.Handle) -> None:
        before = time.thread_time_ns()
        run(self)
        held_ms = (time.thread_time_ns() - before) / 1e6
        if held_ms > LONGEST["ms"]:  # type: ignore[operator]
            LONGEST.update(ms=held_ms, what=repr(self)[:300])

    asyncio.Handle._run = timed  # type: ignore[attr-defined]


def answer() -> None:
    for _ in sys.stdin:
        print(json.dumps(LONGEST), flush=True)
        LONGEST.update(ms=0.0, what="")


if __name__ == "__main__":
    watch()
    threading.Thread(target=answer, daemon=True).start()
    sys.argv[1:1] = ["serve"]
    main()
