"""What falls below the low watermark goes: old versions of rows, and tables that were dropped.

On the leader of each partition, when the low watermark has risen:

1. The floor rises to just below the newest revision at the low watermark. Then older versions of
   rows are not live, and the group's own compaction reclaims them.
2. The rows of a table, and the entries of an index, that no version of the catalog from the low
   watermark on has, are deleted, `DELETED_TOGETHER` keys at a time. Ids ascend and are never
   reused: an id that the catalog at the low watermark had given, and does not have, is gone.
3. So is the progress of builds that have ended.

The low watermark is the least one of the nodes that are alive, as far as they have said it:

    tables/low_watermark/<node>     8 bytes big-endian

So a reader on any node holds back all leaders. One event loop.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from lithify.catalog.errors import CatalogVersionTrimmed
from lithify.catalog.objects import IndexDescriptor, IndexStatus
from lithify.errors import LithifyError
from lithify.logger import get_logger
from lithify.metastore.transaction import Delete, DeleteRange, Put, Transaction, prefix_range
from lithify.tables.assignments import group_name
from lithify.tables.keys import BUILD_PREFIX, SYSTEM_SPACE, space_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from lithify.catalog.catalog import Catalog
    from lithify.catalog.versions import CatalogVersions
    from lithify.metastore.local_metastore import LocalMetastore
    from lithify.metastore.state import MetastoreState
    from lithify.tables.partitions import PartitionHosting

__all__ = ["Reclaim", "gone_spaces"]

PREFIX = b"tables/low_watermark/"
DELETED_TOGETHER = 500

log = get_logger("lithify.tables")


def gone_spaces(state: MetastoreState, catalog: Catalog) -> list[int]:
    """The spaces of a partition that belong to nothing as of the low watermark."""
    found = []
    start = space_of(SYSTEM_SPACE + 1)
    while (key := next(iter(state.keys.present(start, b"")), None)) is not None:
        space = int.from_bytes(key[:4], "big")
        if space < catalog.next_id and space not in catalog.objects:
            found.append(space)
        if space == 2**32 - 1:
            break
        start = space_of(space + 1)
    return found


class Reclaim:
    """See the module. `alive` returns the names of the nodes that are."""

    def __init__(
        self,
        node: str,
        metastore: LocalMetastore,
        hosting: PartitionHosting,
        versions: CatalogVersions,
        alive: Callable[[], Collection[str]],
    ) -> None:
        self._node = node
        self._metastore = metastore
        self._hosting = hosting
        self._versions = versions
        self._alive = alive

    async def raised(self, low_watermark: int) -> None:
        """The low watermark of this node has risen; for `LowWatermark.listen`."""
        try:
            least = await self._least(low_watermark)
            catalog = self._catalog_at(least)
        except LithifyError as error:
            log.info("old versions of rows stay", reason=str(error))
            return
        for partition, store in self._hosting.led().items():
            try:
                await self._reclaim(store, least, catalog)
            except LithifyError as error:
                # The next time, or the next leader, does it.
                group = group_name(partition)
                log.info("old versions of rows stay", group=group, reason=str(error))
            await asyncio.sleep(0)

    async def _least(self, own: int) -> int:
        """The least low watermark of the nodes that are alive."""
        key = PREFIX + self._node.encode()
        if len(alive := set(self._alive()) - {self._node}) == 0:
            return own
        value = own.to_bytes(8, "big")
        await self._metastore.transact(Transaction(then=(Put(key, value),)))
        rows = (await self._metastore.range(*prefix_range(PREFIX))).rows
        said = {row.key[len(PREFIX) :].decode(): int.from_bytes(row.value, "big") for row in rows}
        # A node that has not said one yet has no readers of before.
        return min([own, *(said[each] for each in alive if each in said)])

    def _catalog_at(self, time: int) -> Catalog:
        try:
            return self._versions.at_time(time)
        except CatalogVersionTrimmed:
            return self._versions.earliest

    async def _reclaim(self, store: LocalMetastore, time: int, catalog: Catalog) -> None:
        state = store.state
        floor = state.revisions.newest_at(time) - 1
        if floor > state.floor:
            await store.compact(floor)
        for space in gone_spaces(state, catalog):
            delete = DeleteRange(*prefix_range(space_of(space)), DELETED_TOGETHER)
            while (await store.transact(Transaction(then=(delete,)))).changed:
                pass
        for key in list(state.keys.present(*prefix_range(BUILD_PREFIX))):
            index_id = int.from_bytes(key[len(BUILD_PREFIX) :], "big")
            index = self._versions.latest.find(IndexDescriptor, index_id)
            if index is None or index.status is not IndexStatus.BUILDING:
                await store.transact(Transaction(then=(Delete(key),)))
