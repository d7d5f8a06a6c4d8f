"""Reads many entries of a group out of its segments, in another process than the node's.

    for frames in scan_segments(fs, directory, spans, indexes):
        ...                                 # frames of all blocks that may have the indexes

The node has said which segments there are, and which indexes of each count (`GroupSegments.spans`).
Segments may be merged meanwhile: all old names lead to the merged file. One that was deleted raises
`FileNotFoundError`; damage is raised where it is found. No frame is returned twice, nor one of an
index that does not count; frames of other indexes than those asked for are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

import numpy as np

from lithify.raft.storage.segment_file import SegmentFile

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from lithify.fs import FileSystem
    from lithify.log.segments.scan import Frames
    from lithify.raft.storage.group_segments import IndexSpan

__all__ = ["scan_segments"]


def scan_segments(
    fs: FileSystem, directory: str, spans: Sequence[IndexSpan], indexes: NDArray[np.int64]
) -> Iterator[Frames]:
    """See the module; the indexes ascend, and may repeat."""
    for span in spans:
        low, high = np.searchsorted(indexes, (span.first, span.last + 1))
        if low == high:
            continue
        segment = SegmentFile(fs, directory, span.ref)
        try:
            segment.damaged = _raise
            segment.open()
            for frames in segment.frames(indexes[low:high]):
                positions = frames.positions
                first, stop = np.searchsorted(positions, (span.first, span.last + 1))
                yield (
                    frames if stop - first == len(positions) else frames.select(slice(first, stop))
                )
        finally:
            segment.close()


def _raise(error: Exception) -> NoReturn:
    raise error
