"""The settings of tables on a node. Checked when created. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from lithify.settings import check_range
from lithify.tables.low_watermark import WatermarkSettings

__all__ = ["TableSettings"]

_WATERMARK = WatermarkSettings()


@dataclass(frozen=True, slots=True)
class TableSettings:
    """See the module."""

    table_availability_ms: int = _WATERMARK.availability_ms
    """How long ago a reader may read; older versions of rows go."""
    table_read_life_ms: int = _WATERMARK.read_life_ms
    """The longest life of a read-only transaction, which holds back what goes."""
    table_transaction_life_ms: int = 30_000
    """The longest life of a read-write transaction."""

    def __post_init__(self) -> None:
        check_range("table_transaction_life_ms", self.table_transaction_life_ms, 100, 3_600_000)
        _ = self.watermark  # Its constructor checks it.

    @property
    def watermark(self) -> WatermarkSettings:
        """The settings of the low watermark."""
        return WatermarkSettings(
            availability_ms=self.table_availability_ms, read_life_ms=self.table_read_life_ms
        )
