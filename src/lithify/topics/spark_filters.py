"""What the filters of a query say about the segments it can leave out.

Spark hands over conditions that all hold: comparisons of a column with a value. Those on positions
and publish times become bounds, those on the topic and the partition choose among logs, all others
say nothing. Bounds are generous: Spark applies every condition again to what is read.

Pure. For the Spark source.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

from lithify.positions import PACKED_ENTRY_BITS, pack

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql.datasource import Filter

    from lithify.topics.spark_scan import Bounds

__all__ = ["allows", "narrowed"]

_ENTRY_MAX = 2**PACKED_ENTRY_BITS - 1
_SETS_LOW = EqualTo | EqualNullSafe | In | GreaterThan | GreaterThanOrEqual
_SETS_HIGH = EqualTo | EqualNullSafe | In | LessThan | LessThanOrEqual


def allows(condition: Filter, said: Mapping[str, Any]) -> bool:
    """May a message meet it, of which so much is known?"""
    if isinstance(condition, EqualTo | EqualNullSafe | In) and condition.attribute[0] in said:
        values = condition.value if isinstance(condition, In) else (condition.value,)
        return said[condition.attribute[0]] in values
    return True


def narrowed(bounds: Bounds, filters: Sequence[Filter]) -> Bounds:
    """The bounds of what also meets all of these conditions."""
    low, high = _range(filters, "ledger")
    first = 0 if low is None else pack(max(low, 0), 0)
    last = bounds.high if high is None else pack(high + 1, 0) - 1
    if low is not None and low == high:
        # Entries are numbered in each ledger, so they say something only in one of them.
        entry_low, entry_high = _range(filters, "entry")
        first = pack(max(low, 0), min(max(entry_low or 0, 0), _ENTRY_MAX))
        if entry_high is not None:
            last = min(last, pack(low, min(entry_high, _ENTRY_MAX)))
    since_ms, until_ms = _range(filters, "publish_time")
    return replace(
        bounds,
        low=max(bounds.low, first),
        high=min(bounds.high, last),
        time_min_ms=bounds.time_min_ms if since_ms is None else since_ms,
        time_max_ms=bounds.time_max_ms if until_ms is None else until_ms,
    )


def _range(filters: Sequence[Filter], column: str) -> tuple[int | None, int | None]:
    """The least and the greatest value that a column may have, None where there is no limit."""
    lows: list[int] = []
    highs: list[int] = []
    for each in filters:
        if not isinstance(each, _SETS_LOW | _SETS_HIGH) or each.attribute != (column,):
            continue
        given = each.value if isinstance(each, In) else (each.value,)
        values = [_number(value) for value in given if value is not None]
        if values and isinstance(each, _SETS_LOW):
            lows.append(min(values))
        if values and isinstance(each, _SETS_HIGH):
            highs.append(max(values))
    return max(lows, default=None), min(highs, default=None)


def _number(value: Any) -> int:
    """A time in whole milliseconds, which is all that the log knows; anything else as it is."""
    if not isinstance(value, datetime):
        return int(value)
    moment = value if value.tzinfo else value.replace(tzinfo=UTC)
    return (moment - datetime.fromtimestamp(0, UTC)) // timedelta(milliseconds=1)
