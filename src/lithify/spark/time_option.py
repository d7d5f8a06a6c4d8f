"""Parses an option of a query that is a time. Pure."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from lithify.errors import InvalidInput

__all__ = ["time_option_ms"]


def time_option_ms(name: str, text: str) -> int:
    """The first millisecond, the log's resolution, at or after a time."""
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        raise InvalidInput(f"{name} {text!r} must be a time such as 2026-01-31T12:00Z") from None
    since = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)) - datetime.fromtimestamp(
        0, UTC
    )
    return -(-since // timedelta(milliseconds=1))
