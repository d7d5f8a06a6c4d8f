"""`catalog-snapshot`: other writes to the metastore while a snapshot replaces many versions.

A thread writes 256 bytes to the metastore of a node, one write after the other. Of the durations of
its writes the 99th percentile counts: while the node makes a snapshot of all its versions, against
the same writes before. So a ratio of 1/3 is three times as long. The new versions
that each round begins with are not measured.

The note has the memory that the process needed at its peak above what it had before: the versions
themselves, which readers may ask for until then, are in memory before.
"""

from __future__ import annotations

import asyncio
import gc
import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import lithify
from bench.harness import Case
from bench.memory import Peak, watched
from lithify.catalog.commands.topics import AlterTopic, CreateTopic
from lithify.metastore.transaction import Put, Transaction

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from lithify.node.node import Node

__all__ = ["CASES", "FULL", "QUICK", "Sizes"]

NAMESPACE = "public/default"
TOPICS = 100
IN_PROGRESS = 64
KEYS = 1000
VALUE = os.urandom(256)
PERCENTILE = 0.99
MEMORY_MB_MAX = 100


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much one round does."""

    rounds: int
    versions: int
    writes: int
    """Before a snapshot; during one there are as many as it lasts."""


FULL = Sizes(rounds=2, versions=100_000, writes=3000)
QUICK = Sizes(rounds=1, versions=100, writes=20)


class _History:
    """A node with many versions."""

    def __init__(self, node: Node, sizes: Sizes) -> None:
        self._node = node
        self._sizes = sizes
        self._changes = 0
        self.added_bytes = 0
        """The most memory that a snapshot needed."""
        owner = node.cluster.name
        topics = [CreateTopic(NAMESPACE, f"t{number}", owners=(owner,)) for number in range(TOPICS)]
        node.cluster.call(lambda: node.cluster.catalog.execute(topics)).result()

    def write_alone(self) -> float:
        """The 99th percentile of the seconds of a write, while nothing else happens."""
        return _percentile([self._write(number) for number in range(self._sizes.writes)])

    def write_beside_snapshot(self) -> float:
        """The same while all versions are replaced by a snapshot."""
        catalog = self._node.cluster.catalog
        self._node.cluster.call(self._alter_many).result()
        newest = catalog.versions.latest.version
        gc.collect()
        before, peak = Peak(), Peak()
        durations: list[float] = []
        before.look()
        with watched(peak):
            snapshot = self._node.cluster.call(lambda: catalog.snapshot(newest))
            while not snapshot.done():
                durations.append(self._write(len(durations)))
            assert snapshot.result()
        self.added_bytes = max(self.added_bytes, peak.bytes - before.bytes)
        return _percentile(durations)

    def note(self) -> str:
        """The memory, and whether it is below the limit."""
        added_mb = self.added_bytes / 1e6
        verdict = "pass" if added_mb < MEMORY_MB_MAX else "miss"
        return f"memory at the peak +{added_mb:.0f} MB, below {MEMORY_MB_MAX}: {verdict}"

    def _write(self, number: int) -> float:
        cluster = self._node.cluster
        transaction = Transaction(then=(Put(b"bench/%d" % (number % KEYS), VALUE),))
        began_s = time.perf_counter()
        cluster.call(lambda: cluster.metastore.transact(transaction)).result()
        return time.perf_counter() - began_s

    async def _alter_many(self) -> None:
        first, self._changes = self._changes, self._changes + self._sizes.versions
        numbers = iter(range(first, self._changes))

        async def alter() -> None:
            for number in numbers:
                settings = {"retention_ms": 1_000_000 + number}
                command = AlterTopic(NAMESPACE, f"t{number % TOPICS}", settings)
                await self._node.cluster.catalog.execute([command])

        await asyncio.gather(*(alter() for _ in range(IN_PROGRESS)))


def _percentile(durations: list[float]) -> float:
    return sorted(durations)[int(PERCENTILE * (len(durations) - 1))]


def snapshot(directory: str, sizes: Sizes) -> Iterator[Case]:
    with lithify.open(f"{directory}/data") as node:
        history = _History(node, sizes)
        yield Case(
            "catalog-snapshot",
            f"99th percentile of writes of 256 B while {sizes.versions:,} versions are snapshotted",
            "of the same writes without",
            round(1 / 3, 2),
            1,
            "writes",
            history.write_beside_snapshot,
            history.write_alone,
            history.note,
        )


CASES: dict[str, Callable[[str, Sizes], Iterator[Case]]] = {"catalog-snapshot": snapshot}
"""Row by row, in the order of the table."""
