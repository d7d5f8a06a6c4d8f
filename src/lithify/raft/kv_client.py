"""A client of the key-value machine: what `kv_format.py` has in bytes, as calls.

    async with RaftClient(addresses) as client:
        kv = KvClient(client, "default")
        await kv.put(b"colour", b"red")

Who asks waits until it is done, on a majority; any number may be under way. Errors are those of
`client.py`. One event loop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lithify.raft import kv_format as kv
from lithify.raft.operations import Operation

if TYPE_CHECKING:
    from lithify.raft.client import RaftClient
    from lithify.raft.kv_format import Reply, Row

__all__ = ["KvClient"]


class KvClient:
    """See the module."""

    def __init__(self, client: RaftClient, group: str) -> None:
        self.client = client
        self.group = group

    async def put(self, key: bytes, value: bytes) -> Reply:
        """Let a key have a value."""
        return await self._propose(kv.put(key, value))

    async def delete(self, key: bytes) -> Reply:
        """Let a key be no more."""
        return await self._propose(kv.delete(key))

    async def compare_and_set(
        self, key: bytes, value: bytes, expected: bytes | int | None
    ) -> Reply:
        """Let a key have a value if it has a value, a revision, or (None) nothing."""
        return await self._propose(kv.compare_and_set(key, value, expected))

    async def get(self, key: bytes) -> Reply:
        """The value of a key, as of now."""
        _, reply = await self.client.ask(self.group, Operation.READ, kv.get(key))
        return kv.parse_reply(reply)

    async def scan(self, prefix: bytes, rows_max: int, after: bytes = b"") -> list[Row]:
        """Keys with a prefix, ascending, behind the one that is known."""
        query = kv.scan(prefix, rows_max, after)
        _, reply = await self.client.ask(self.group, Operation.READ, query)
        return kv.parse_rows(reply)

    async def _propose(self, command: bytes) -> Reply:
        _, reply = await self.client.ask(self.group, Operation.PROPOSE, command)
        return kv.parse_reply(reply)
