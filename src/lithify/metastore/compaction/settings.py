"""The settings of the history of the metastore. Checked when created. Pure.

Those of the node that leads count.
"""

from __future__ import annotations

from dataclasses import dataclass

from lithify.settings import check_range

__all__ = ["HistorySettings"]

LIMIT_MS = 2**45


@dataclass(frozen=True, slots=True)
class HistorySettings:
    """See the module."""

    retention_ms: int = 3_600_000
    """What was in force this long ago can be read."""
    every_ms: int = 60_000
    """The interval of periodic runs; 0 is off."""

    def __post_init__(self) -> None:
        check_range("metastore_retention_ms", self.retention_ms, 0, LIMIT_MS)
        check_range("metastore_compaction_every_ms", self.every_ms, 0, LIMIT_MS)
