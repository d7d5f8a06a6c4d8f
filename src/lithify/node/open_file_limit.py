"""The limit of open files of the process, the share of topics, and errors of accept at the limit.

Used by `server.py`.
"""

from __future__ import annotations

import errno
import resource
from typing import TYPE_CHECKING, Any

from lithify.logger import get_logger
from lithify.node.open_topics import DESCRIPTORS_PER_TOPIC

if TYPE_CHECKING:
    import asyncio

__all__ = ["AcceptErrors", "files_max", "open_topics_max"]

ACCEPT_QUIET_S = 60.0
"""Minimum time between two log lines about connections that cannot be accepted."""

_FULL = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})

log = get_logger("lithify.node")


def files_max() -> int:
    """The limit of open files; `lithify serve` has raised it to the maximum."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def open_topics_max(descriptors: int) -> int:
    """The limit of open topics: they get half of all descriptors.

    The other half is for connections and for files that are being read.
    """
    return max(1, descriptors // 2 // DESCRIPTORS_PER_TOPIC)


class AcceptErrors:
    """The exception handler of an event loop: logs one line if no descriptor is left for accept.

    asyncio itself waits a second before it accepts again. Other errors are logged as usual.
    """

    def __init__(self, descriptors: int) -> None:
        self._descriptors = descriptors
        self._logged_s: float | None = None

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Handle an error of the loop."""
        error = context.get("exception")
        # The only errors with a "socket" that asyncio reports here are those of accept().
        if "socket" not in context or not isinstance(error, OSError) or error.errno not in _FULL:
            loop.default_exception_handler(context)
            return
        now_s = loop.time()
        if self._logged_s is None or now_s - self._logged_s >= ACCEPT_QUIET_S:
            self._logged_s = now_s
            log.error(
                "connections cannot be accepted",
                reason=str(error),
                files_max=self._descriptors,
            )
