"""What the flags of a key index row say about its message."""

from __future__ import annotations

__all__ = ["CHUNK_LAST", "CHUNK_PART", "KEYLESS", "OPAQUE", "TOMBSTONE"]

TOMBSTONE = 1 << 0
KEYLESS = 1 << 1
OPAQUE = 1 << 2
"""It cannot be opened and stands for its whole entry, which always stays."""
CHUNK_PART = 1 << 3
CHUNK_LAST = 1 << 4
"""The chunk that completes its message and stands for it."""
