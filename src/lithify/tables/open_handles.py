"""The transactions that clients have open on a node, by handle.

A handle is `NODE.TOKEN`: a transaction lives on the node on which it was begun, and ends with it.
One request at a time uses a transaction; another one waits. A transaction whose life is over ends
at its next use, or at the next `sweep`.
"""

from __future__ import annotations

import asyncio
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from secrets import token_hex
from typing import TYPE_CHECKING

from lithify.tables.errors import TooManyTransactions, TransactionEnded, TransactionExpired

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from lithify.clock import Clock
    from lithify.tables.partition_transaction import PartitionTransaction
    from lithify.tables.reads import TableReader

__all__ = ["OpenHandle", "OpenHandles", "node_of_handle"]

TRANSACTIONS_MAX = 10_000
TOKEN_BYTES = 8


@dataclass(slots=True)
class OpenHandle:
    """A transaction that a client has open."""

    transaction: PartitionTransaction | TableReader
    life_ms: int
    deadline_s: float
    """Of the monotonic clock."""
    ends: ExitStack
    """What its end releases."""
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


def node_of_handle(handle: str) -> str:
    """The node on which a transaction was begun."""
    return handle.rpartition(".")[0]


class OpenHandles:
    """See the module. One event loop."""

    def __init__(self, node: str, clock: Clock) -> None:
        self._node = node
        self._clock = clock
        self._open: dict[str, OpenHandle] = {}

    @property
    def count(self) -> int:
        """The number of open transactions."""
        return len(self._open)

    def add(
        self, transaction: PartitionTransaction | TableReader, life_ms: int, ends: ExitStack
    ) -> str:
        """The handle of a transaction; `ends` is closed with it, also if it is refused."""
        if len(self._open) >= TRANSACTIONS_MAX:
            ends.close()
            raise TooManyTransactions(TRANSACTIONS_MAX)
        handle = f"{self._node}.{token_hex(TOKEN_BYTES)}"
        deadline_s = self._clock.monotonic_s() + life_ms / 1000
        self._open[handle] = OpenHandle(transaction, life_ms, deadline_s, ends)
        return handle

    @asynccontextmanager
    async def use(self, handle: str) -> AsyncIterator[OpenHandle]:
        """Use a transaction; raises `TransactionEnded` or `TransactionExpired`."""
        found = self._open.get(handle)
        if found is None:
            raise TransactionEnded(handle)
        async with found.lock:
            if self._open.get(handle) is not found:
                raise TransactionEnded(handle)
            if self._clock.monotonic_s() >= found.deadline_s:
                self.end(handle)
                raise TransactionExpired(found.life_ms)
            yield found

    def end(self, handle: str) -> None:
        """A transaction has ended. May be called again."""
        found = self._open.pop(handle, None)
        if found is not None:
            found.ends.close()

    def sweep(self) -> None:
        """End the transactions whose life is over and that are not in use."""
        now_s = self._clock.monotonic_s()
        for handle, each in list(self._open.items()):
            if now_s >= each.deadline_s and not each.lock.locked():
                self.end(handle)
