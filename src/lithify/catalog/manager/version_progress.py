"""A version that ascends, and tasks that wait for it."""

from __future__ import annotations

import asyncio
import heapq
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lithify.errors import LithifyError

__all__ = ["VersionProgress"]


class VersionProgress:
    """See the module. One event loop."""

    def __init__(self) -> None:
        self.version = 0
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []
        self._number = 0
        self._error: LithifyError | None = None

    def advance(self, version: int) -> None:
        """Reach a version: waits for it or an earlier one end."""
        self.version = max(self.version, version)
        while self._waiting and self._waiting[0][0] <= self.version:
            future = heapq.heappop(self._waiting)[-1]
            if not future.done():
                future.set_result(None)

    def fail(self, error: LithifyError) -> None:
        """No further version will be reached: a wait for one ends with the first such error."""
        self._error = self._error or error
        waiting, self._waiting = self._waiting, []
        for *_, future in waiting:
            if not future.done():
                future.set_exception(self._error)

    async def wait(self, version: int) -> None:
        """Return when the version is reached."""
        if version <= self.version:
            return
        if self._error is not None:
            raise self._error
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._number += 1
        heapq.heappush(self._waiting, (version, self._number, future))
        await future
