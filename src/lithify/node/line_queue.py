r"""A stream of lines whose `write` never waits for whoever reads them.

    lines = LineQueue(sys.stderr.buffer.raw.write, lambda count: f"{count} lines are missing\n")
    lines.write("something happened\n")
    lines.drain(EXIT_S)                     # before the process ends

A pipe that nobody reads is full after 64 KiB, and whoever writes to it then waits for ever, be it
the thread that serves every client. So lines go through a queue:

1. `write` puts a line into the queue, in memory, and returns.
2. A thread takes lines out and writes them, as they were put. It alone waits.
3. A line for which the queue has no room is dropped, and so are all behind it until everything that
   waits is written: lines are missing at one place then, not at many. There the thread writes how
   many they are. Lines that could not be written, because a disk is full or a pipe broken, are
   counted in the same way, and that is tried again every second.

Any thread may call. A process that is killed loses what is in the queue, which is nothing unless
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
"""How long a process that ends waits for a reader; a stuck one must not keep it."""

AGAIN_S = 1.0
FULL_S = 0.05


class LineQueue:
    """See the module. What structlog needs of a text file."""

    def __init__(
        self,
        write: Callable[[memoryview], int | None],
        missing: Callable[[int], str],
        *,
        bytes_max: int = QUEUE_BYTES_MAX,
    ) -> None:
        """`write` is that of a raw stream; `missing` makes the line that says how many are."""
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
        """Have a line written, its end included, or counted as missing."""
        data = line.encode("utf-8", "backslashreplace")
        with self._changed:
            if self._dropped or self._bytes + len(data) > self._bytes_max:
                self._dropped += 1
                return
            self._lines.append(data)
            self._bytes += len(data)
            self._changed.notify_all()

    def flush(self) -> None:
        """Nothing to do: a line is under way as soon as it is in the queue."""

    def drain(self, timeout_s: float) -> bool:
        """Wait until everything is written; False if that has not happened in time."""
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
            except (OSError, ValueError):  # The latter: somebody closed the stream.
                with self._changed:
                    self._dropped += lines
                time.sleep(AGAIN_S)

    def _take(self) -> tuple[bytes, int]:
        """Some lines and how many they stand for.

        No more than a pipe takes in one piece: another process may write to it as well.
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
                time.sleep(FULL_S)  # Whoever opened the pipe made it one that does not wait.
            else:
                left = left[written:]
