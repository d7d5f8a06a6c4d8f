"""Rows of tables over the network, for commands and other processes that are no node.

    async with RaftClient(addresses) as raft:
        tables = TableClient(raft)
        await tables.put("orders", {"id": 5, "count": 1})
        row = await tables.get("orders", {"id": 5})

Each request is a transaction of its own, which any node executes; the leader of the row's partition
does it without asking another one. Requests that are in progress at the same time have no order.

A refusal is `OperationRefused` with its reason. `MayHaveHappened` says that the outcome of a write
is unknown. One event loop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lithify.raft.net.client_operations import ClientOperation
from lithify.tables.row_request_format import RowRequestKind, decode_object, encode_request

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lithify.raft.client.client import RaftClient

__all__ = ["TableClient"]


class TableClient:
    """See the module."""

    def __init__(self, client: RaftClient) -> None:
        self._client = client

    async def put(self, table: str, row: Mapping[str, Any]) -> None:
        """Insert or replace a row."""
        request = encode_request(RowRequestKind.PUT, table, row)
        await self._client.ask("", ClientOperation.PROCESS, request)

    async def delete(self, table: str, key: Mapping[str, Any]) -> None:
        """Delete a row; no change if there is none."""
        request = encode_request(RowRequestKind.DELETE, table, key)
        await self._client.ask("", ClientOperation.PROCESS, request)

    async def get(self, table: str, key: Mapping[str, Any]) -> dict[str, Any] | None:
        """The newest row with a key, None if there is none; linearizable."""
        request = encode_request(RowRequestKind.GET, table, key)
        _, answer = await self._client.ask("", ClientOperation.PROCESS_READ, request)
        return decode_object("the answer", answer) if answer else None
