"""The metastore over the network, for commands and other processes that are no node.

    async with RaftClient(addresses) as raft:
        metastore = MetastoreClient(raft)
        await metastore.transact(Transaction(then=(Put(b"colour", b"red"),)))

It has no watches and no safe time: those need the state of a node (`local_metastore.py`). A local
read is answered as any other. Errors are those of `requests.py`. One event loop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lithify.metastore.local_metastore import GROUP
from lithify.metastore.requests import MetastoreRequests
from lithify.raft.net.client_operations import ClientOperation

if TYPE_CHECKING:
    from lithify.raft.client.client import RaftClient

__all__ = ["MetastoreClient"]


class MetastoreClient(MetastoreRequests):
    """See the module."""

    def __init__(self, client: RaftClient) -> None:
        super().__init__(_ClientAccess(client))


class _ClientAccess:
    """A `MetastoreAccess` over a client."""

    def __init__(self, client: RaftClient) -> None:
        self._client = client

    async def propose(self, command: bytes) -> bytes:
        return (await self._client.ask(GROUP, ClientOperation.PROPOSE, command))[1]

    async def read(self, query: bytes, *, local: bool) -> bytes:  # noqa: ARG002  (no state here)
        return (await self._client.ask(GROUP, ClientOperation.READ, query))[1]
