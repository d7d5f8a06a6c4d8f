"""Compaction settings of a topic. The topic overrides its namespace, which overrides the node.

    compaction_enabled              off: runs start only on request
    compaction_threshold_bytes      new bytes that trigger a run; 0 is off
    compaction_threshold_messages   new messages that trigger a run; 0 is off
    compaction_lag_min_ms           younger messages are not compacted
    compaction_lag_max_ms           an older message that is not compacted triggers a run; 0 is off
    compaction_every_ms             interval that triggers a run; 0 is off
    tombstone_retention_ms          time after publishing for which the view keeps a tombstone
    key_ttl_ms                      the view drops keys not published for this time; 0 is off
    compaction_order                "publish" or "event": which message of a key is the newest
    keep_keyless                    the view keeps messages without a key
    live_ratio_min                  segments of the view with a smaller live ratio are rewritten
    rewrite_bytes_max               maximum bytes that a run rewrites; 0: as many as are new to it
    compaction_read_bytes_per_s     rate limits of a run; 0 is no limit
    compaction_write_bytes_per_s
    compaction_memory_bytes         memory limit for the tasks of a run
    compaction_scratch_bytes        temporary disk space of a run; 0 is no limit
    compaction_pace_bytes_per_s_min the range of rates for a run that slows down while reads for
    compaction_pace_bytes_per_s_max   consumers are slow, see `compaction/limits/pace_by_latency.py`
    compaction_pace_p95_ms_max      slow: the p95 of such reads is above this, or
    compaction_pace_p95_rise_max      above this multiple of its value before the run

Pure: values only.
"""

from __future__ import annotations

from dataclasses import dataclass

from lithify.compaction.limits.budget import Budget
from lithify.compaction.limits.pace_by_latency import PaceSettings
from lithify.errors import InvalidSetting
from lithify.settings import check_range

__all__ = ["TopicCompactionSettings"]

_LIMIT = 2**62
_PACE = PaceSettings(bytes_per_s_max=4 << 30)


@dataclass(frozen=True, slots=True)
class TopicCompactionSettings:
    """The compaction settings of one topic; the module docstring lists them."""

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
        """Is the newest message of a key chosen by event time?"""
        return self.compaction_order == "event"

    @property
    def by_itself(self) -> bool:
        """Does any trigger start runs of this topic?"""
        triggers = (
            self.compaction_threshold_bytes,
            self.compaction_threshold_messages,
            self.compaction_lag_max_ms,
            self.compaction_every_ms,
        )
        return self.compaction_enabled and any(triggers)

    def budget(self) -> Budget:
        """The resource limits of a run."""
        return Budget(
            read_bytes_per_s=self.compaction_read_bytes_per_s or None,
            write_bytes_per_s=self.compaction_write_bytes_per_s or None,
            memory_bytes=self.compaction_memory_bytes,
            scratch_bytes=self.compaction_scratch_bytes or None,
        )

    def pace(self) -> PaceSettings:
        """How a run slows down while reads for consumers are slow."""
        return PaceSettings(
            self.compaction_pace_bytes_per_s_min,
            self.compaction_pace_bytes_per_s_max,
            self.compaction_pace_p95_ms_max,
            self.compaction_pace_p95_rise_max,
        )
