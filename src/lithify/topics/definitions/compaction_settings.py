"""How a topic is compacted, as its definitions say: topic over namespace over the node.

    compaction_enabled              off: only a person's request runs it
    compaction_threshold_bytes      new bytes that call for a run; 0 is off
    compaction_threshold_messages   new messages that call for a run; 0 is off
    compaction_lag_min_ms           messages younger than that are not judged
    compaction_lag_max_ms           a run is called for when one that old is not judged; 0 is off
    compaction_every_ms             a run is called for so often; 0 is off
    tombstone_retention_ms          tombstones stay in the view so long after they were published
    key_ttl_ms                      keys not published for so long leave the view; 0 is off
    compaction_order                "publish" or "event": what makes a message the newest of its key
    keep_keyless                    messages without a key stay in the view
    live_ratio_min                  segments of the view of which less is live are rewritten
    rewrite_bytes_max               that one run rewrites at most; 0: as much as is new to it
    compaction_read_bytes_per_s     limits of a run; 0 is no limit
    compaction_write_bytes_per_s
    compaction_memory_bytes         that the tasks of a run may hold
    compaction_scratch_bytes        disk that a run may take while it goes on; 0 is no limit
    compaction_pace_bytes_per_s_min between these rates a run slows down while reads for consumers
    compaction_pace_bytes_per_s_max   take longer, see `compaction/limits/pace.py`
    compaction_pace_p95_ms_max      it slows down above this p95 of such reads, or
    compaction_pace_p95_rise_max      above so many times what it was before the run

Pure: values only.
"""

from __future__ import annotations

from dataclasses import dataclass

from lithify.compaction.limits.budget import Budget
from lithify.compaction.limits.pace import PaceSettings
from lithify.errors import InvalidSetting
from lithify.settings import check_range

__all__ = ["TopicCompactionSettings"]

_LIMIT = 2**62
_PACE = PaceSettings(bytes_per_s_max=4 << 30)


@dataclass(frozen=True, slots=True)
class TopicCompactionSettings:
    """The settings of one topic; see the module."""

    compaction_enabled: bool = True
    compaction_threshold_bytes: int = 0
    compaction_threshold_messages: int = 0
    compaction_lag_min_ms: int = 0
    compaction_lag_max_ms: int = 0
    compaction_every_ms: int = 0
    tombstone_retention_ms: int = 0
    key_ttl_ms: int = 0
    compaction_order: str = "publish"
    keep_keyless: bool = True
    live_ratio_min: float = 0.7
    rewrite_bytes_max: int = 0
    compaction_read_bytes_per_s: int = 0
    compaction_write_bytes_per_s: int = 0
    compaction_memory_bytes: int = 2**28
    compaction_scratch_bytes: int = 0
    compaction_pace_bytes_per_s_min: int = _PACE.bytes_per_s_min
    compaction_pace_bytes_per_s_max: int = _PACE.bytes_per_s_max
    compaction_pace_p95_ms_max: float = _PACE.p95_ms_max
    compaction_pace_p95_rise_max: float = _PACE.p95_rise_max

    def __post_init__(self) -> None:
        for name in (
            "compaction_threshold_bytes",
            "compaction_threshold_messages",
            "compaction_lag_min_ms",
            "compaction_lag_max_ms",
            "compaction_every_ms",
            "tombstone_retention_ms",
            "key_ttl_ms",
            "rewrite_bytes_max",
        ):
            check_range(name, getattr(self, name), 0, _LIMIT)
        if self.compaction_order not in ("publish", "event"):
            raise InvalidSetting("compaction_order", self.compaction_order, "publish or event")
        if not 0 <= self.live_ratio_min <= 1:
            raise InvalidSetting("live_ratio_min", self.live_ratio_min, "0 to 1")
        self.budget()
        try:
            self.pace()
        except InvalidSetting as error:
            name = f"compaction_pace_{error.name}"
            raise InvalidSetting(name, error.value, error.limit) from error

    @property
    def by_event_time(self) -> bool:
        """Does the event time decide which message of a key is the newest?"""
        return self.compaction_order == "event"

    @property
    def by_itself(self) -> bool:
        """Is the topic compacted without being asked?"""
        triggers = (
            self.compaction_threshold_bytes,
            self.compaction_threshold_messages,
            self.compaction_lag_max_ms,
            self.compaction_every_ms,
        )
        return self.compaction_enabled and any(triggers)

    def budget(self) -> Budget:
        """What a run may use."""
        return Budget(
            read_bytes_per_s=self.compaction_read_bytes_per_s or None,
            write_bytes_per_s=self.compaction_write_bytes_per_s or None,
            memory_bytes=self.compaction_memory_bytes,
            scratch_bytes=self.compaction_scratch_bytes or None,
        )

    def pace(self) -> PaceSettings:
        """How a run slows down while consumers wait."""
        return PaceSettings(
            self.compaction_pace_bytes_per_s_min,
            self.compaction_pace_bytes_per_s_max,
            self.compaction_pace_p95_ms_max,
            self.compaction_pace_p95_rise_max,
        )
