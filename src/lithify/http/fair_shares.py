"""Limits concurrent requests of one kind, and shares the places fairly among callers.

Requests whose client determines how long they occupy memory, a thread or an open file (producing,
uploads, readers) need a place. The rules, for every kind:

1. A caller may take another place only while more places are free than it holds. So one caller has
   at most half of all places, a second one at least a quarter, and so on: a caller with many slow
   requests does not block others.
2. A place that becomes free goes to the waiting caller that holds the fewest, then to the one that
   has waited longest. So callers with many requests converge to equal shares.
3. A client that is too slow loses its place: one that does not send `PIECE_BYTES` of a body, or all
   of it, within `STALL_S` (`gather`), or does not receive what it is sent (`client_time`).

A caller is the name in a token, or an address (`auth.caller_of`).

For the event loop. Used by `messages/produce.py`, `messages/read.py` and `blobs/content.py`; one
`Shares` per kind of request in an application.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from contextlib import asynccontextmanager, contextmanager
from http import HTTPStatus
from typing import TYPE_CHECKING

from lithify.http.error_responses import RequestRefused

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

__all__ = ["PIECE_BYTES", "Shares", "client_time", "gather"]

PIECE_BYTES = 2**20
STALL_S = 60.0


class Shares:
    """The places of one kind of request."""

    def __init__(self, places: int, what: str) -> None:
        """`what` names the kind in the error of a caller that gets no place."""
        self._places = places
        self._what = what
        self._free = places
        self._held: Counter[str] = Counter()
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}

    @asynccontextmanager
    async def waits(self, caller: str) -> AsyncIterator[None]:
        """Hold a place; wait until one is free."""
        if self._waiting or not self._may_take(caller):
            await self._wait(caller)
        else:
            self._take(caller)
        try:
            yield
        finally:
            self.release(caller)

    @contextmanager
    def now(self, caller: str) -> Iterator[None]:
        """Hold a place; raise `RequestRefused` (429) if none is free."""
        self.take(caller)
        try:
            yield
        finally:
            self.release(caller)

    def take(self, caller: str) -> None:
        """Take a place, to be released later; raise `RequestRefused` (429) if none is free."""
        if not self._may_take(caller):
            reason = (
                f"{self._what}: {self._places - self._free} of {self._places} places are taken, "
                f"{self._held[caller]} of them by this caller, which is the limit"
            )
            raise RequestRefused(HTTPStatus.TOO_MANY_REQUESTS, reason)
        self._take(caller)

    def release(self, caller: str) -> None:
        """Release a place."""
        self._free += 1
        self._held[caller] -= 1
        if not self._held[caller]:
            del self._held[caller]
        self._admit()

    def _may_take(self, caller: str) -> bool:
        return self._free > self._held[caller]

    def _take(self, caller: str) -> None:
        self._free -= 1
        self._held[caller] += 1

    async def _wait(self, caller: str) -> None:
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(caller, deque()).append(place)
        # A free place may be available to this caller only.
        self._admit()
        try:
            await place
        except asyncio.CancelledError:
            if not place.cancelled():
                # A place had already been assigned.
                self.release(caller)
            raise

    def _admit(self) -> None:
        """Assign free places to waiting callers."""
        while self._waiting:
            # `min` returns the first of equals, which has waited longest.
            caller = min(self._waiting, key=self._held.__getitem__)
            if not self._may_take(caller):
                return
            queue = self._waiting.pop(caller)
            place = queue.popleft()
            if queue:
                self._waiting[caller] = queue
            if not place.cancelled():
                self._take(caller)
                place.set_result(None)


def client_time() -> asyncio.Timeout:
    """The time that a client has to receive what it is sent, or to send its data."""
    return asyncio.timeout(STALL_S)


async def gather(chunks: AsyncIterator[bytes], size_min: int = PIECE_BYTES) -> tuple[bytes, bool]:
    """The next piece of a body, shorter than `size_min` only at the end; and whether it ended."""
    held: list[bytes] = []
    size = 0
    try:
        async with client_time():
            async for chunk in chunks:
                held.append(chunk)
                size += len(chunk)
                if size >= size_min:
                    return b"".join(held), False
    except TimeoutError as error:
        reason = f"received {size} bytes of the content in {STALL_S:.0f} s, which is too slow"
        raise RequestRefused(HTTPStatus.REQUEST_TIMEOUT, reason) from error
    return b"".join(held), True
