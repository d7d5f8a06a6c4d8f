"""What a node says about itself when the coordinator asks, and what it does with the answer.

    local = LocalTimes("n1", needs)
    times = await local.read()             # the answer: `NodeTimes`
    await local.publish(minimum, term)     # the minimum of all nodes, for the groups led here

The minimum begin time is never above the activation of the version in force here, the one that the
next transaction uses: a version may be appended with a lower time than a clock has reached.

Any message may be lost, repeated or late: what is published ascends, and a message of an earlier
term than one seen before is ignored.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Protocol

from lithify.catalog_compaction.facts import NodeTimes
from lithify.catalog_compaction.published import PublishedTime
from lithify.errors import InvalidInput, LithifyError
from lithify.logger import get_logger

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from lithify.catalog_compaction.published import Replica
    from lithify.tables.assignments import Partition

__all__ = ["LocalNeeds", "LocalTimes", "decode_times", "encode_times"]

SETTLE_S = (0.05, 0.1, 0.2, 0.4, 0.8, 1.6)
"""Pauses between checks whether the replicas have what their leaders have written."""
WRITES_MAX = 64
"""Groups that are written to at the same time."""

log = get_logger("lithify.catalog")


class LocalNeeds(Protocol):
    """What the parts of this node need of the catalog's history."""

    @property
    def low_watermark(self) -> int:
        """The time below which nothing is read here; 0 if there is none yet."""

    def minimum_begin(self) -> int:
        """Of the active read-write transactions of this node, or its time if there are none."""

    def activation(self) -> int:
        """Of the version of the catalog in force here."""

    def replicas(self) -> Mapping[Partition, Replica]:
        """The partitions of tables that are on this node."""


class LocalTimes:
    """See the module. One event loop."""

    def __init__(
        self,
        node: str,
        needs: LocalNeeds,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._node = node
        self._needs = needs
        self._sleep = sleep
        self._term = 0
        """The greatest one of the coordinators that have sent a minimum."""

    async def read(self) -> NodeTimes:
        """The answer to the coordinator."""
        # First: transactions that begin from here on are later than what is read here.
        begin = min(self._needs.minimum_begin(), self._needs.activation())
        watermark = self._needs.low_watermark
        replicas = self._needs.replicas()
        published = {
            partition: await PublishedTime(replica).read()
            for partition, replica in list(replicas.items())
        }
        return NodeTimes(self._node, watermark, begin, published)

    async def publish(self, minimum: int, term: int) -> None:
        """Write the minimum of all nodes into the groups that are led here, and have it durable."""
        if term < self._term:
            return
        self._term = term
        slots = asyncio.Semaphore(WRITES_MAX)

        async def write(partition: Partition, replica: Replica) -> None:
            async with slots:
                try:
                    await PublishedTime(replica).write(minimum)
                except LithifyError as error:
                    # The next run tries again.
                    log.info("a time is not published", partition=partition, reason=str(error))

        replicas = dict(self._needs.replicas())
        led = ((key, replica) for key, replica in replicas.items() if replica.leads)
        await asyncio.gather(*(write(*each) for each in led))
        await self._settle(replicas, minimum)

    async def _settle(self, replicas: dict[Partition, Replica], minimum: int) -> None:
        """Have each replica publish, as soon as it has applied what its leader has written."""
        for pause_s in (0.0, *SETTLE_S):
            if pause_s:
                await self._sleep(pause_s)
            for partition, replica in list(replicas.items()):
                try:
                    if await PublishedTime(replica).settle(minimum):
                        del replicas[partition]
                except LithifyError:
                    # The replica has left this node.
                    del replicas[partition]
            if not replicas:
                return


def encode_times(times: NodeTimes) -> dict[str, Any]:
    """An answer as JSON values."""
    return {
        "node": times.node,
        "low_watermark": times.low_watermark,
        "minimum_begin": times.minimum_begin,
        "published": [[*partition, time] for partition, time in sorted(times.published.items())],
    }


def decode_times(row: dict[str, Any]) -> NodeTimes:
    """An answer from JSON values."""
    try:
        published = {(int(zone), int(number)): int(time) for zone, number, time in row["published"]}
        times = int(row["low_watermark"]), int(row["minimum_begin"])
        return NodeTimes(str(row["node"]), *times, published)
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidInput(f"the answer of a node about its times: {error!r}") from error
