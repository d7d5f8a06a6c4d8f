"""Makes `NODE` durable in a thread, many changes with one write.

    number = saving.changed()   # the identity has changed; it becomes durable soon
    saving.after(number, then)  # `then(None)` when it is durable

A start of another node is recorded this way. The answer that accepts the node waits for the record:
before that the other node sends no vote and no acknowledgement, so its promises cannot be forgotten
together with its start. Nothing else waits.

If the disk refuses, the waiting callers get the error and close their connections; the other node
reconnects and so retries. Changes that safety does not need wait for the next one.

Changes that the node needs before it continues (groups, a new standing) are saved by
`NodeIdentity.save` in the event loop, as they are rare. Called in the event loop.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING

from lithify.errors import WriteFailed
from lithify.logger import get_logger

if TYPE_CHECKING:
    from collections.abc import Callable

    from lithify.raft.node.identity import NodeIdentity

    Then = Callable[[BaseException | None], None]

__all__ = ["IdentitySaving"]

log = get_logger("lithify.raft")


class IdentitySaving:
    """See the module."""

    def __init__(self, identity: NodeIdentity) -> None:
        self._identity = identity
        self._waiting: list[tuple[int, Then]] = []
        self._thread = ThreadPoolExecutor(1, "raft-identity")
        self._writing: asyncio.Future[None] | None = None
        self._closed = False

    @property
    def is_writing(self) -> bool:
        """Is a write in progress?"""
        return self._writing is not None

    def changed(self) -> int:
        """Make a change durable soon; returns its number."""
        self._identity.changes += 1
        self._begin()
        return self._identity.changes

    def after(self, number: int, then: Then) -> None:
        """Call when all changes up to this one are durable; at once if they already are."""
        if self._identity.durable >= number:
            then(None)
            return
        self._waiting.append((number, then))
        self._begin()

    def _begin(self) -> None:
        if self._writing is None and not self._closed:
            loop = asyncio.get_running_loop()
            number, line = self._identity.line()
            self._writing = loop.run_in_executor(self._thread, self._identity.write, number, line)
            self._writing.add_done_callback(self._done)

    def _done(self, writing: asyncio.Future[None]) -> None:
        self._writing = None
        error = writing.exception()
        if error is not None:
            log.error("write refused", file=self._identity.path, reason=str(error))
        durable = self._identity.durable
        waiting, self._waiting = self._waiting, []
        for number, then in waiting:
            if number <= durable or error is not None:
                then(error)
            else:
                self._waiting.append((number, then))
        if error is None and not self._identity.is_durable:
            self._begin()

    async def close(self) -> None:
        """Write what is not durable yet; a refusal by the disk loses nothing that safety needs."""
        self._closed = True
        if self._writing is not None:
            await asyncio.wait([self._writing])
        if not self._identity.is_durable:
            with suppress(OSError, WriteFailed):
                await asyncio.to_thread(self._identity.save)
        await asyncio.to_thread(self._thread.shutdown)
