"""Places that callers share: how many requests of one kind are carried out at a time, and whose.

Requests that cost memory, a thread or an open file for as long as their client takes (producing,
uploads, readers) need a place. The rules, for every kind of them:

1. A caller may take another place only while more places are free than it holds. So one caller has
   at most half of all places, a second one at least a quarter, and so on: a caller that holds many
   slow requests does not keep others out.
2. A place that becomes free goes to the waiting caller that holds the fewest, then to the one that
   has waited longest. So those who keep asking end up with equal shares.
3. A client that is too slow loses its place: one that does not send `PIECE_BYTES` of a body, or all
   of it, within `STALL_S` (`gather`), or does not take what it is sent (`client_time`).

A caller is the name in a token, or else an address (`auth.caller_of`).

Of the event loop. Used by `produce.py`, `tail.py` and `blob_content.py`; one `Shares` for each kind
of request in an application.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from contextlib import asynccontextmanager, contextmanager
from http import HTTPStatus
from typing import TYPE_CHECKING

from lithify.http.errors import Refused

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

__all__ = ["PIECE_BYTES", "Shares", "client_time", "gather"]

PIECE_BYTES = 2**20
STALL_S = 60.0


class Shares:
    """The places of one kind of request."""

    def __init__(self, places: int, what: str) -> None:
        """`what` names them in the error that a caller gets if there is none."""
        self._places = places
        self._what = what
        self._free = places
        self._held: Counter[str] = Counter()
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}

    @asynccontextmanager
    async def waits(self, caller: str) -> AsyncIterator[None]:
        """Hold a place; wait until there is one."""
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
        """Hold a place; raise `Refused` (429) if there is none now."""
        self.take(caller)
        try:
            yield
        finally:
            self.release(caller)

    def take(self, caller: str) -> None:
        """Take a place, which is to be released; raise `Refused` (429) if there is none now."""
        if not self._may_take(caller):
            reason = (
                f"{self._what}: {self._places - self._free} of {self._places} places are taken, "
                f"{self._held[caller]} of them by this caller, which is the limit"
            )
            raise Refused(HTTPStatus.TOO_MANY_REQUESTS, reason)
        self._take(caller)

    def release(self, caller: str) -> None:
        """Give a place back."""
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
        # There may be places that nobody who waits may take, but this one.
        self._admit()
        try:
            await place
        except asyncio.CancelledError:
            if not place.cancelled():
                # It had been handed over already.
                self.release(caller)
            raise

    def _admit(self) -> None:
        """Hand free places to those who wait."""
        while self._waiting:
            # Of equals the first, which has waited longest.
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
    """The time that a client has to take what it is sent, or to send what it has to."""
    return asyncio.timeout(STALL_S)


async def gather(chunks: AsyncIterator[bytes], size_min: int = PIECE_BYTES) -> tuple[bytes, bool]:
    """A piece of a body, which is shorter than `size_min` only at the end; was that the end?"""
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
        reason = f"{size} bytes of the content came in {STALL_S:.0f} s, which is too slow"
        raise Refused(HTTPStatus.REQUEST_TIMEOUT, reason) from error
    return b"".join(held), True
