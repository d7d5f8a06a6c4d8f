"""How many files the process may have open, and what of that topics may use."""

from __future__ import annotations

import resource
from typing import TYPE_CHECKING, Any

from lithify.logger import get_logger
from lithify.node.opening import DESCRIPTORS_PER_TOPIC

if TYPE_CHECKING:
    import asyncio

__all__ = ["AcceptErrors", "open_topics_max", "raise_limit"]

ACCEPT_QUIET_S = 60.0
"""That no connection can be accepted is logged so often at most."""

log = get_logger("lithify.node")

DESCRIPTORS_MAX = 2**20
"""The limit is raised to this at most; some systems have none."""


def raise_limit() -> int:
    """Raise the limit on open files to what the system allows the process; the limit then.

    The limit that a shell sets, often 1024, is for programs that use `select`.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = DESCRIPTORS_MAX if hard == resource.RLIM_INFINITY else min(hard, DESCRIPTORS_MAX)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        return wanted
    return DESCRIPTORS_MAX if soft == resource.RLIM_INFINITY else soft


def open_topics_max(descriptors: int) -> int:
    """How many topics may be open: the other half is for connections, and for what is read."""
    return max(1, descriptors // 2 // DESCRIPTORS_PER_TOPIC)


class AcceptErrors:
    """The exception handler of an event loop: one line if no descriptor is left to accept with.

    asyncio itself waits a second before it accepts again. Other errors are logged as always.
    """

    def __init__(self, descriptors: int) -> None:
        self._descriptors = descriptors
        self._logged_s: float | None = None

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Handle what the loop reports."""
        if not str(context.get("message", "")).startswith("socket.accept()"):
            loop.default_exception_handler(context)
            return
        now_s = loop.time()
        if self._logged_s is None or now_s - self._logged_s >= ACCEPT_QUIET_S:
            self._logged_s = now_s
            log.error(
                "connections cannot be accepted",
                reason=str(context.get("exception")),
                files_max=self._descriptors,
            )
