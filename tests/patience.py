"""Limits for waits: a test that waits for what never comes fails, and says for what.

A reader of the output of another process waits until that writes something or ends. So a process
that is stuck is ended, and the reader finds less than it wants:

    with at_most(PROCESS_S_MAX, process.kill):
        line = process.stdout.readline()
"""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PROCESS_S_MAX = 100
"""For a step of another process or thread, on a machine that may be busy; a test that passes waits
for no more of it than the step takes. Less than a test may take."""


@contextmanager
def at_most(seconds: float, end: Callable[[], object]) -> Iterator[None]:
    """Have `end` called, by another thread, if the block takes longer."""
    timer = threading.Timer(seconds, end)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()


def wait_until(
    condition: Callable[[], bool], *, seconds: float = PROCESS_S_MAX, every_s: float = 0.01
) -> None:
    """Poll until a condition without a notification holds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not so after {seconds} s"
        time.sleep(every_s)
