"""Dry runs over HTTP, which wait for the run or dry run in progress on the same log.

They wait in the event loop. A dry run that waited in a thread would block it during a whole run,
and a few of them all threads of the node.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar

from lithify.errors import RunRefused

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from lithify.compaction.run.log_runs import LogRuns

__all__ = ["when_free"]

POLL_S = 0.1

T = TypeVar("T")


async def when_free(runs: LogRuns, plan: Callable[[], Awaitable[T]], *, wait: bool) -> T:
    """Await `plan`, which is refused while the log is in use, until it is free."""
    while True:
        try:
            return await plan()
        except RunRefused as refused:
            if not wait or refused.limit != runs.kind:
                raise
        await asyncio.sleep(POLL_S)
