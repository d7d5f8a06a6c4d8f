"""The log of a node on stderr: one line per record, made of `name=value` pairs.

    timestamp=2026-01-31T12:00:00.123456Z level=info event="connection lost" peer=127.0.0.1:50321

All records use it: structlog's loggers, the standard library's (uvicorn, asyncio), and the events
of the stores, with their own text. A traceback is one value with escaped line ends. Logging never
waits for the reader of stderr (`stderr_queue.py`): the node keeps serving even if stderr is a pipe
without an active reader.
"""

from __future__ import annotations

import atexit
import logging
import sys
from typing import TYPE_CHECKING, cast

import structlog

from lithify.events import SetAside, WriteRefused
from lithify.node.log_lines.stderr_queue import EXIT_S, LineQueue

if TYPE_CHECKING:
    from collections.abc import Callable, MutableMapping
    from typing import Any, TextIO

    from lithify.events import Event

__all__ = ["configure_log_lines", "log_event"]

_log = structlog.get_logger("lithify")
_timestamp = structlog.processors.TimeStamper(fmt="iso")
_render = structlog.processors.LogfmtRenderer(
    key_order=["timestamp", "level", "event"], bool_as_flag=False
)


def configure_log_lines(level: str, stream: TextIO | None = None) -> None:
    """Write records of this level and above to `stream`, by default to stderr."""
    number = logging.getLevelNamesMapping()[level.upper()]
    structlog.configure(
        processors=[
            structlog.stdlib.add_log_level,
            _timestamp,
            structlog.processors.format_exc_info,
            _render,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.WriteLoggerFactory(stream or _stderr()),
    )
    root = logging.getLogger()
    root.handlers = [_Forward()]
    root.setLevel(number)
    # uvicorn logs each start and stop; its addresses are already printed.
    logging.getLogger("uvicorn").setLevel(max(number, logging.WARNING))


def _stderr() -> TextIO:
    write: Callable[[memoryview], int | None] = len  # stderr was closed before the process started.
    if sys.stderr is not None:
        # Bypass Python's buffer, if there is one: a blocked thread would hold its lock.
        write = getattr(sys.stderr.buffer, "raw", sys.stderr.buffer).write
    lines = LineQueue(write, _missing)
    atexit.register(lines.drain, EXIT_S)
    return cast("TextIO", lines)


def _missing(lines: int) -> str:
    event = "log lines are missing here: the reader of stderr was too slow"
    pairs = _timestamp(None, "", {"level": "warning", "event": event, "lines": lines})
    return f"{_render(None, '', pairs)}\n"


class _Forward(logging.Handler):
    """Forwards the records of the standard library's loggers."""

    def emit(self, record: logging.LogRecord) -> None:
        """Forward one record."""
        extra: MutableMapping[str, Any] = {"logger": record.name}
        if record.exc_info:
            extra["exc_info"] = record.exc_info
        _log.log(record.levelno, record.getMessage(), **extra)


def log_event(event: Event) -> None:
    """The `EventSink` of a node; any thread may call it."""
    if isinstance(event, WriteRefused):
        _log.error(str(event))
    elif isinstance(event, SetAside):
        _log.warning(str(event))
    else:
        _log.info(str(event))
