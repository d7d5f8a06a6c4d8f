"""What a node writes to stderr: one line a record, made of `name=value` pairs.

    timestamp=2026-01-31T12:00:00.123456Z level=info event="connection lost" peer=127.0.0.1:50321

Everything goes the same way: structlog's loggers, the standard library's (uvicorn, asyncio), and
the events of the stores, which say what happened in their own words. A traceback is one value,
its line ends escaped. Nobody waits for the reader of stderr (`line_queue.py`): a process goes on
also if it is a pipe that nobody reads.
"""

from __future__ import annotations

import atexit
import logging
import sys
from typing import TYPE_CHECKING, cast

import structlog

from lithify.events import SetAside, WriteRefused
from lithify.node.line_queue import EXIT_S, LineQueue

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
    # uvicorn tells about each start and stop; its addresses are printed already.
    logging.getLogger("uvicorn").setLevel(max(number, logging.WARNING))


def _stderr() -> TextIO:
    write: Callable[[memoryview], int | None] = len  # If it was closed before the process began.
    if sys.stderr is not None:
        # Below the buffer of Python, if it has one: a thread that is stuck would keep its lock.
        write = getattr(sys.stderr.buffer, "raw", sys.stderr.buffer).write
    lines = LineQueue(write, _missing)
    atexit.register(lines.drain, EXIT_S)
    return cast("TextIO", lines)


def _missing(lines: int) -> str:
    event = "log lines are missing here, nobody took them"
    pairs = _timestamp(None, "", {"level": "warning", "event": event, "lines": lines})
    return f"{_render(None, '', pairs)}\n"


class _Forward(logging.Handler):
    """Takes the records of the standard library's loggers."""

    def emit(self, record: logging.LogRecord) -> None:
        """One record."""
        extra: MutableMapping[str, Any] = {"logger": record.name}
        if record.exc_info:
            extra["exc_info"] = record.exc_info
        _log.log(record.levelno, record.getMessage(), **extra)


def log_event(event: Event) -> None:
    """The `EventSink` of a node; may be called from any thread."""
    if isinstance(event, WriteRefused):
        _log.error(str(event))
    elif isinstance(event, SetAside):
        _log.warning(str(event))
    else:
        _log.info(str(event))
