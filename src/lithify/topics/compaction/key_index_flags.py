"""Flags of a key index row."""

from __future__ import annotations

__all__ = ["CHUNK_LAST", "CHUNK_PART", "KEYLESS", "OPAQUE", "TOMBSTONE"]

TOMBSTONE = 1 << 0
KEYLESS = 1 << 1
OPAQUE = 1 << 2
"""The entry cannot be decoded. The row is for the whole entry, which is always retained."""
CHUNK_PART = 1 << 3
CHUNK_LAST = 1 << 4
"""The last chunk of a message, which decides whether the message is live."""
