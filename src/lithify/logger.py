"""Log records: to structlog if the process has configured it, else to standard `logging`.

    log = get_logger("lithify.pulsar")
    log.warning("connection closed", peer="10.0.0.7:50321", reason="…")

`lithify serve` configures structlog (`node/log_lines/stderr_log.py`). A program that embeds a node
need not: structlog's default prints to stdout, which belongs to that program. So without a
configuration records go to the standard library's logger of that name, and are shown only if the
program configures it. No other setting of the process is changed.

Any module may have one; any thread may call it.
"""

from __future__ import annotations

import logging
from typing import Any

import structlog

__all__ = ["Logger", "get_logger"]

# Otherwise `logging` writes warnings to stderr for a program that has not configured it.
logging.getLogger("lithify").addHandler(logging.NullHandler())


class Logger:
    """Logs an event, which is a constant text, with its details as named values."""

    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        self._name = name

    def info(self, event: str, **pairs: Any) -> None:
        """Log a normal event."""
        self._record(logging.INFO, event, pairs)

    def warning(self, event: str, **pairs: Any) -> None:
        """Log an event that should not occur."""
        self._record(logging.WARNING, event, pairs)

    def error(self, event: str, **pairs: Any) -> None:
        """Log a failure."""
        self._record(logging.ERROR, event, pairs)

    def exception(self, event: str, **pairs: Any) -> None:
        """Log a failure with the error that is being handled."""
        self._record(logging.ERROR, event, {"exc_info": True, **pairs})

    def _record(self, level: int, event: str, pairs: dict[str, Any]) -> None:
        if structlog.is_configured():
            structlog.get_logger(self._name).log(level, event, **pairs)
            return
        problem = pairs.pop("exc_info", None)
        text = " ".join((event, *(f"{name}={value!r}" for name, value in pairs.items())))
        logging.getLogger(self._name).log(level, "%s", text, exc_info=problem)


def get_logger(name: str) -> Logger:
    """The logger of a part of Lithify."""
    return Logger(name)
