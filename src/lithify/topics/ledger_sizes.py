"""The sizes of a topic's ledgers, and of its log above a position.

Whole ledgers count by the manifest, and a ledger with the position in it by the entries above the
position.

Functions of an open log that change nothing and read no file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lithify.positions import PACKED

if TYPE_CHECKING:
    from lithify.log.log import Log
    from lithify.log.manifest import SegmentRef

__all__ = ["ledgers_of", "storage_bytes", "stored_above"]


def ledgers_of(log: Log) -> list[tuple[SegmentRef, int, int, int]]:
    """(segment, last position, entries, bytes) of each ledger; the active one is last."""
    *sealed, active = log.manifest.segments
    rows = [(ref, ref.last_position, ref.live_entries, ref.live_bytes) for ref in sealed]
    last = min(log.last_position, PACKED.last(active.id))
    entries = max(0, last - active.first_position + 1)
    return [*rows, (active, last, entries, log.active_bytes if entries else 0)]


def storage_bytes(log: Log) -> int:
    """The bytes that the files of a topic's log take on disk."""
    manifest = log.manifest
    sizes = sum(manifest.sizes().values()) + sum(r.file_bytes for r in manifest.retired)
    return sizes + log.active_bytes


def stored_above(log: Log, position: int) -> tuple[int, int]:
    """(entries, bytes) above a position."""
    above = 0
    size_bytes = 0
    for _, last, entries, length in ledgers_of(log):
        # In the ledger of the position only entries above it count; gaps make them fewer.
        left = min(entries, max(0, last - position))
        if left:
            above += left
            size_bytes += length * left // entries
    return above, size_bytes
