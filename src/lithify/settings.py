"""Settings of a log, with their limits.

Every setting is checked when the object is created; `InvalidSetting` names the setting, its value
and the limit.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from lithify.errors import InvalidSetting

__all__ = ["Durability", "LogSettings", "check_range", "kind_of"]


class Durability(StrEnum):
    """When an append is acknowledged."""

    ALWAYS = "always"
    """After an fsync, which concurrent appends share."""

    INTERVAL = "interval"
    """After the write system call; an fsync follows within `sync_interval_ms`."""

    NONE = "none"
    """After the write system call; fsync only when a segment is sealed."""


def check_range(name: str, value: float | None, low: float, high: float) -> None:
    """Raise `InvalidSetting` unless `low <= value <= high`; None (off) always passes."""
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidSetting(name, value, f"a number from {low} to {high}")
    if not low <= value <= high:
        raise InvalidSetting(name, value, f"from {low} to {high}")


def kind_of(default: object) -> str:
    """What a setting with this default must be, in words."""
    return _KINDS.get(type(default), f"of the kind of {default!r}")


_KINDS = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}


@dataclass(frozen=True, slots=True)
class LogSettings:
    """Settings of one log. They may change between two opens of the same log."""

    durability: Durability = Durability.ALWAYS
    sync_interval_ms: int = 200
    segment_bytes_max: int = 256 * 2**20
    """A segment is rolled before it would exceed this; the frame's `synced` field has 32 bits, so
    the maximum is 4 GiB - 1."""
    segment_age_ms_max: int | None = None
    entry_bytes_max: int = 64 * 2**20
    open_files_max: int = 64
    """Sealed segments kept open for reading."""

    def __post_init__(self) -> None:
        if self.durability not in tuple(Durability):
            names = ", ".join(Durability)
            raise InvalidSetting("durability", self.durability, f"one of {names}")
        check_range("sync_interval_ms", self.sync_interval_ms, 1, 3_600_000)
        check_range("segment_bytes_max", self.segment_bytes_max, 1024, 2**32 - 1)
        check_range("segment_age_ms_max", self.segment_age_ms_max, 1, 2**48)
        check_range("entry_bytes_max", self.entry_bytes_max, 1, 2**30)
        check_range("open_files_max", self.open_files_max, 1, 1_000_000)
