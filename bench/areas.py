"""Which rows there are: areas in the order of the page, rows in the order of their table.

An area is one table and one plot of `docs/benchmarks.md`. A row is what `--only` takes and what one
result file holds; it may have several lines, such as `compact` and `compact (batches)`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from bench import (
    blobs,
    blobs_http,
    catalog,
    catalog_snapshot,
    compaction,
    foundation,
    idle_groups,
    metastore,
    node_start,
    raft,
    raft_storage,
    reading,
    topics,
)

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import ModuleType

    from bench.harness import Case

__all__ = ["AREAS", "ROWS", "Area", "cases"]


@dataclass(frozen=True, slots=True)
class Area:
    """One section of the page."""

    name: str
    """Of its markers and its plot."""
    title: str
    modules: tuple[ModuleType, ...]

    @property
    def rows(self) -> tuple[str, ...]:
        """Their names, in order."""
        return tuple(row for module in self.modules for row in module.CASES)


AREAS = (
    Area("log", "The log", (foundation,)),
    Area("topics", "Topics", (topics,)),
    Area("compaction", "Topic compaction", (compaction,)),
    Area("reading", "Compacted reads", (reading,)),
    Area("blobs", "Blobs", (blobs, blobs_http)),
    Area("raft-storage", "Raft storage", (raft_storage,)),
    Area("raft", "Raft nodes", (raft, idle_groups)),
    Area("metastore", "Metastore", (metastore,)),
    Area("catalog", "Catalog and start of a node", (catalog, catalog_snapshot, node_start)),
)
ROWS = tuple(row for area in AREAS for row in area.rows)


def cases(
    row: str, directory: str, *, quick: bool, gib: float | None = None
) -> tuple[int, Iterable[Case]]:
    """How many rounds the row has, and its cases, which keep their data below `directory`."""
    (module,) = (m for area in AREAS for m in area.modules if row in m.CASES)
    sizes = module.QUICK if quick else module.FULL
    if module is compaction and not quick:
        sizes = sizes.of(compaction.GIB[row] if gib is None else gib)
    return sizes.rounds, module.CASES[row](directory, sizes)
