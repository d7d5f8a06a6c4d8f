"""Settings of a blob store, and the arithmetic of its segments.

Capacity and segment size are fixed at creation and are in the manifest's `state`. The settings may
change at any time (`BlobStore.change_settings`).

A sealed segment has at most `segment_bytes` bytes, footer and block index included:

    frames + header  <=  segment_bytes - 80 - 24 × (segment_bytes / 64 KiB + 2)

Pure. Any module may use it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from lithify.compaction.limits.budget import Budget
from lithify.compaction.limits.pace_by_latency import PaceSettings
from lithify.compaction.policies.plugins import check_policy
from lithify.compaction.policies.why_declined import Eligibility
from lithify.compaction.scheduling.triggers import Trigger
from lithify.errors import InvalidSetting
from lithify.log.segments.block_index import ROW_BYTES
from lithify.log.segments.segment_file import FOOTER_BYTES, SEGMENT_HEADER_BYTES
from lithify.settings import Durability, LogSettings, check_range

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "DAY_MS",
    "POLICY_NAMES",
    "RECORD_BODY_BYTES_MAX",
    "SEGMENT_BYTES_MIN",
    "BlobSettings",
    "StoreShape",
]

SEGMENT_BYTES_MIN = 4096
SEGMENT_BYTES_MAX = 2**32 - 1
CAPACITY_BYTES_MAX = 2**50
RECORD_BODY_BYTES_MAX = 2**17
"""64 KiB of content, 16 KiB of metadata, four texts of 1 KiB, and some slack."""
POLICY_NAMES = ("all", "stats", "hybrid")
TRIGGER_NAMES = (Trigger.PERIODIC, Trigger.ADMIN)
DAY_MS = 24 * 3600 * 1000

_BLOCK_BYTES = 64 * 1024
_STATE = "blob_store"


@dataclass(frozen=True, slots=True)
class BlobSettings:
    """The settings of a store."""

    deleted_retention_ms: int = 7 * DAY_MS
    """How long a deleted blob can be undeleted and its content is kept."""
    durability: Durability = Durability.ALWAYS
    index_rows_max: int = 1_000_000
    """Rows of key indexes cached in memory, 62 bytes each."""
    open_files_max: int = 64
    policy: str = "all"
    """Of compaction: `all`, `stats`, `hybrid` or the policy of an installed package."""
    full_every_ms: int = 6 * DAY_MS
    """Time between two full compactions of the policy `hybrid`."""
    triggers: tuple[str, ...] = (Trigger.PERIODIC, Trigger.ADMIN)
    """What may start a run on a node: `periodic`, at start and every `every_ms`, and `admin`, on
    request. Without triggers, compaction is off."""
    every_ms: int = 7 * DAY_MS
    used_percent_min: float = 0
    """No run while less of the capacity is used."""
    reclaim_segments_min: int = 0
    """No run that frees fewer segments."""
    pace: PaceSettings = field(default_factory=PaceSettings)
    """A run slows down while gets take longer."""
    budget: Budget = field(default_factory=Budget)

    def __post_init__(self) -> None:
        check_range("deleted_retention_ms", self.deleted_retention_ms, 0, 2**47)
        check_range("index_rows_max", self.index_rows_max, 1, 2**32)
        check_range("full_every_ms", self.full_every_ms, 0, 2**47)
        check_range("every_ms", self.every_ms, 1, 2**47)
        Eligibility(0, self.used_percent_min, self.reclaim_segments_min)
        check_policy(self.policy, POLICY_NAMES)
        for trigger in self.triggers:
            if trigger not in TRIGGER_NAMES:
                raise InvalidSetting("triggers", trigger, f"one of {', '.join(TRIGGER_NAMES)}")


@dataclass(frozen=True, slots=True)
class StoreShape:
    """What is fixed at creation."""

    capacity_bytes: int
    segment_bytes: int

    def __post_init__(self) -> None:
        check_range("segment_bytes", self.segment_bytes, SEGMENT_BYTES_MIN, SEGMENT_BYTES_MAX)
        check_range("capacity_bytes", self.capacity_bytes, self.segment_bytes, CAPACITY_BYTES_MAX)
        if self.capacity_bytes % self.segment_bytes:
            limit = f"a multiple of segment_bytes, {self.segment_bytes}"
            raise InvalidSetting("capacity_bytes", self.capacity_bytes, limit)

    @property
    def closing_bytes(self) -> int:
        """The most bytes that sealing adds to a segment."""
        return FOOTER_BYTES + ROW_BYTES * (self.segment_bytes // _BLOCK_BYTES + 2)

    @property
    def record_bytes_max(self) -> int:
        """The largest record: it fills a segment alone."""
        return self.segment_bytes - self.closing_bytes - SEGMENT_HEADER_BYTES

    def log_settings(self, settings: BlobSettings) -> LogSettings:
        """The settings of the store's log."""
        return LogSettings(
            durability=settings.durability,
            segment_bytes_max=self.segment_bytes - self.closing_bytes,
            entry_bytes_max=RECORD_BODY_BYTES_MAX,
            open_files_max=settings.open_files_max,
        )

    def to_state(self) -> dict[str, Any]:
        """The value in the manifest's state."""
        shape = {"capacity_bytes": self.capacity_bytes, "segment_bytes": self.segment_bytes}
        return {_STATE: shape}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> StoreShape | None:
        """Parse the value of the manifest's state; None if no store was created."""
        shape = state.get(_STATE)
        return None if shape is None else cls(shape["capacity_bytes"], shape["segment_bytes"])
