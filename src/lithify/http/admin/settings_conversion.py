"""Converts settings between Pulsar's names and units, over HTTP, and those of definitions.

Over HTTP a retention has minutes and MB, a time to live has seconds. The definitions have the names
and units of `topics/definitions/policies.py`.
"""

from http import HTTPStatus
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from lithify.http.error_responses import RequestRefused

__all__ = [
    "MESSAGE_TTL_MS",
    "RETENTION_BYTES",
    "RETENTION_MS",
    "Retention",
    "retention_of",
    "ttl_seconds_of",
    "ttl_settings",
]

RETENTION_MS = "retention_ms"
RETENTION_BYTES = "retention_bytes"
MESSAGE_TTL_MS = "message_ttl_ms"

MS_PER_MINUTE = 60_000
BYTES_PER_MB = 2**20


class Retention(BaseModel):
    """How long, and up to what size, acknowledged messages are kept; -1 is unlimited."""

    model_config = ConfigDict(populate_by_name=True)
    minutes: int = Field(ge=-1, le=2**40, alias="retentionTimeInMinutes")
    megabytes: int = Field(ge=-1, le=2**40, alias="retentionSizeInMB")

    def settings(self) -> dict[str, int]:
        """The settings for the definitions."""
        minutes, megabytes = self.minutes, self.megabytes
        return {
            RETENTION_MS: minutes if minutes < 0 else minutes * MS_PER_MINUTE,
            RETENTION_BYTES: megabytes if megabytes < 0 else megabytes * BYTES_PER_MB,
        }


def retention_of(settings: dict[str, Any]) -> dict[str, int] | None:
    """The retention in settings, with Pulsar's names; None if it is not set."""
    time_ms, size_bytes = settings.get(RETENTION_MS), settings.get(RETENTION_BYTES)
    if time_ms is None or size_bytes is None:
        return None
    return {
        "retentionTimeInMinutes": time_ms if time_ms < 0 else time_ms // MS_PER_MINUTE,
        "retentionSizeInMB": size_bytes if size_bytes < 0 else size_bytes // BYTES_PER_MB,
    }


def ttl_settings(seconds: int) -> dict[str, int]:
    """The settings for the definitions; 0: never."""
    if not 0 <= seconds <= 2**40:
        reason = f"message TTL is {seconds} s, must be 0 or more, and at most 2^40"
        raise RequestRefused(HTTPStatus.PRECONDITION_FAILED, reason)
    return {MESSAGE_TTL_MS: seconds * 1000}


def ttl_seconds_of(settings: dict[str, Any]) -> int | None:
    """The TTL in settings; None if it is not set."""
    value = settings.get(MESSAGE_TTL_MS)
    return None if value is None else int(value) // 1000
