"""Leaves the event loop to others in a long task: after each slice, at least as long a pause.

    share = LoopShare()
    for each in many:
        work(each)
        await share.give()

A plain `sleep(0)` gives other tasks one turn of the loop, and a request needs several: of the disk,
of other nodes, of its caller. A thread that never waits is also what the operating system lets
wait, and every request in its loop with it.

What takes long and cannot be cut belongs into another thread.
"""

from __future__ import annotations

import asyncio

__all__ = ["LoopShare"]

SLICE_S = 0.0005
"""A request waits as long several times: its threads need the interpreter, too."""
PAUSE_S_MAX = 0.005
"""A slice that has waited for something longer did not use the loop all the time."""


class LoopShare:
    """See the module. One task uses it."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._began_s = self._loop.time()

    async def give(self) -> None:
        """Pause if the slice is over."""
        took_s = self._loop.time() - self._began_s
        if took_s >= SLICE_S:
            await asyncio.sleep(min(took_s, PAUSE_S_MAX))
            self._began_s = self._loop.time()
