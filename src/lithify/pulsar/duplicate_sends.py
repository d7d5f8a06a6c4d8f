"""Deduplication of SENDs: splits them into new and duplicate entries, and makes receipts for both.

Used by `producer_commands.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from lithify.pulsar.fast_path import frames as fast

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from lithify.pulsar.fast_path.frames import Sends
    from lithify.topics.producers.deduplication import Deduplication, Stretch

__all__ = ["repeat_receipts", "split_run"]


def split_run(
    known: Deduplication,
    producer: str,
    data: NDArray[np.uint8],
    sends: Sends,
    start: int,
    stop: int,
) -> list[Stretch]:
    """Split rows `start` to `stop` into new and duplicate stretches; offsets count from `start`.

    Uses the sequence ids in the metadata, because recovery reads them from the log.
    """
    if (sends.flags[start:stop] & fast.CHUNK_ID).any():
        ranges = zip(sends.entry_starts[start:stop], sends.entry_stops[start:stop], strict=True)
        return known.split_chunks(producer, (data.data[low:high] for low, high in ranges))
    first = sends.metadata_sequence_ids[start:stop]
    last = first + sends.nums_in_batch[start:stop] - 1
    return known.split(producer, first, np.maximum(last, sends.highest_sequence_ids[start:stop]))


def repeat_receipts(
    producer_id: int, sequence_ids: NDArray[np.int64], highest: NDArray[np.int64]
) -> bytes:
    """Receipts with the ids (-1, -1): the message is in the log, at a position not stated."""
    out = np.empty(fast.RECEIPT_BYTES_MAX, dtype=np.uint8)
    producer_ids = np.array([fast.signed(producer_id)], dtype=np.int64)
    frames = []
    for row in range(len(sequence_ids)):
        ids, tops = sequence_ids[row : row + 1], highest[row : row + 1]
        frames.append(out[: fast.write_receipts(out, producer_ids, ids, tops, -1, -1)].tobytes())
    return b"".join(frames)
