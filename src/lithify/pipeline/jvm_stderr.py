"""The JVM's standard error: buffered while Spark starts, passed on afterwards.

    java = JavaErrors()
    with java.writing() as descriptor: ...      # start a process with it as its standard error
    java.kept()                                 # Spark did not start: its lines, for one error
    java.pass_on()                              # Spark has started: its lines go to ours

Java writes pages of help, or a stack trace, about one bad option. So no output is shown before it
is known whether Spark starts. A thread reads all of it to the end, so that Java never blocks.
Called by `session.py`.
"""

from __future__ import annotations

import re
import socket
import sys
import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["JavaErrors", "java_reason"]

LINES_MAX = 1000
"""Lines to keep; the first ones have the reason."""
END_S_MAX = 2.0
"""A JVM that has exited has closed its standard error by then."""

_BEFORE_REASON = re.compile(r'(Exception in thread "\w+" |Error: )+')


class JavaErrors:
    """See the module."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._passes = False
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    @contextmanager
    def writing(self) -> Iterator[int]:
        """The descriptor for the process that is started in the block."""
        ours, theirs = socket.socketpair()
        self._thread = threading.Thread(target=self._read, args=(ours,), daemon=True)
        self._thread.start()
        with theirs:
            yield theirs.fileno()

    def _read(self, ours: socket.socket) -> None:
        with ours, ours.makefile("r", encoding="utf-8", errors="replace") as lines:
            for line in lines:
                with self._lock:
                    if self._passes:
                        _show([line])
                    elif len(self._lines) < LINES_MAX:
                        self._lines.append(line)

    def kept(self) -> list[str]:
        """The lines of a Spark that did not start."""
        if self._thread is not None:
            self._thread.join(END_S_MAX)
        with self._lock:
            return [line.rstrip() for line in self._lines]

    def pass_on(self) -> None:
        """Print the buffered lines, and from here on every line."""
        with self._lock:
            self._passes = True
            lines, self._lines = self._lines, []
            _show(lines)


def java_reason(lines: list[str]) -> str:
    """The line that says why Java has exited."""
    said = [line for line in lines if line[:1].strip() and not line.startswith("WARNING: ")]
    return _BEFORE_REASON.sub("", said[0] if said else "Java has exited without a message", count=1)


def _show(lines: list[str]) -> None:
    # The stream of the process: `sys.stderr` may be replaced temporarily by code that is unrelated
    # to Spark. It may be closed.
    if sys.__stderr__ is not None:
        with suppress(OSError, ValueError):
            sys.__stderr__.writelines(lines)
            sys.__stderr__.flush()
