r"""A stream of lines whose `write` never blocks.

    lines = LineQueue(sys.stderr.buffer.raw.write, lambda count: f"{count} lines are missing\n")
    lines.write("something happened\n")
    lines.drain(EXIT_S)                     # before the process exits

A pipe without an active reader is full after 64 KiB, and then blocks its writer, which may be the
thread that serves every client. So lines go through a queue:

1. `write` adds a line to the queue, in memory, and returns.
2. A thread takes lines from the queue and writes them in order. Only this thread blocks.
3. A line for which the queue has no room is dropped, and so are all later ones until the queue is
   empty: lines are then missing in one place, not in many. There the thread writes how many are
   missing. Lines that could not be written, because a disk is full or a pipe is broken, are counted
   in the same way, and the write is retried every second.

Any thread may call. A process that is killed loses the lines in the queue; there are none unless
the reader is slow.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from select import PIPE_BUF
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["EXIT_S", "LineQueue"]

QUEUE_BYTES_MAX = 8 * 2**20
"""About 50,000 lines."""

EXIT_S = 2.0
"""How long an exiting process waits for the reader; a stuck reader must not block the exit."""

RETRY_S = 1.0
PIPE_FULL_S = 0.05


class LineQueue:
    """A queue with the part of a text file's interface that structlog uses; see the module."""

    def __init__(
        self,
        write: Callable[[memoryview], int | None],
        missing: Callable[[int], str],
        *,
        bytes_max: int = QUEUE_BYTES_MAX,
    ) -> None:
        """`write` is that of a raw stream; `missing` formats the line about missing lines."""
        self._write = write
        self._missing = missing
        self._bytes_max = bytes_max
        self._changed = threading.Condition()
        self._lines: deque[bytes] = deque()
        self._bytes = 0
        self._dropped = 0
        self._is_writing = False
        threading.Thread(target=self._work, name="lithify-log-lines", daemon=True).start()

    def write(self, line: str) -> None:
        """Queue a line, including its end, or count it as missing."""
        data = line.encode("utf-8", "backslashreplace")
        with self._changed:
            if self._dropped or self._bytes + len(data) > self._bytes_max:
                self._dropped += 1
                return
            self._lines.append(data)
            self._bytes += len(data)
            self._changed.notify_all()

    def flush(self) -> None:
        """Does nothing: a queued line is written without a flush."""

    def drain(self, timeout_s: float) -> bool:
        """Wait until everything is written; False if the timeout expires first."""
        with self._changed:
            return self._changed.wait_for(self._is_idle, timeout_s)

    def _is_idle(self) -> bool:
        return not (self._lines or self._dropped or self._is_writing)

    # --- the thread -------------------------------------------------------------------------

    def _work(self) -> None:
        while True:
            with self._changed:
                self._is_writing = False
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._lines or self._dropped)
                data, lines = self._take()
                self._is_writing = True
            try:
                self._write_all(data)
            except (OSError, ValueError):  # The latter: the stream was closed.
                with self._changed:
                    self._dropped += lines
                time.sleep(RETRY_S)

    def _take(self) -> tuple[bytes, int]:
        """Take some lines; returns their bytes and their number.

        At most as much as a pipe writes atomically: another process may write to it as well.
        """
        if not self._lines:
            lines, self._dropped = self._dropped, 0
            return self._missing(lines).encode(), lines
        taken = [self._lines.popleft()]
        size = len(taken[0])
        while self._lines and size + len(self._lines[0]) <= PIPE_BUF:
            taken.append(self._lines.popleft())
            size += len(taken[-1])
        self._bytes -= size
        return b"".join(taken), len(taken)

    def _write_all(self, data: bytes) -> None:
        left = memoryview(data)
        while left:
            written = self._write(left)
            if written is None:
                time.sleep(PIPE_FULL_S)  # The pipe was opened in non-blocking mode.
            else:
                left = left[written:]
