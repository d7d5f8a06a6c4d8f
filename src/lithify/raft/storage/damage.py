"""Damaged files of a group: which are open, and reading past damage.

    damages.found("0000000000000003.segment", error)    # any thread; logs the first of a file
    damages.repaired("0000000000000003.segment")        # the group's thread
    damages.open                                        # file -> reason

`intact_frames` reads past damage, so that one bad byte costs one entry and not its neighbours:

1. Frames are scanned in order; every CRC is checked.
2. After a bad frame the scan searches for the next offset from which intact frames follow each
   other up to the end of the range. At least one entry was lost, so the next index is at least two
   above the last good one.

A frame that a client has put into the body of an entry is not taken for an entry: the frames after
it would have to follow it without a gap, and its index would be that of the damaged entry. If there
is no such offset, for example because two frames are damaged, nothing more is read.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import numpy as np

from lithify.errors import DamagedFrame, ReadFailed
from lithify.log.segments import frame_kernels
from lithify.log.segments.frame import HEADER_BYTES
from lithify.log.segments.scan import scan_frames
from lithify.logger import get_logger

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from lithify.fs import File
    from lithify.log.segments.scan import Frames

__all__ = ["Damages", "intact_frames"]

log = get_logger("lithify.raft")


class Damages:
    """See the module."""

    def __init__(self, group: str) -> None:
        self._group = group
        self._lock = threading.Lock()
        self._open: dict[str, str] = {}
        self._found = self._repaired = 0

    def __bool__(self) -> bool:
        """Are there any?"""
        return bool(self._open)

    @property
    def open(self) -> dict[str, str]:
        """The reason by file."""
        with self._lock:
            return dict(self._open)

    def found(self, name: str, error: Exception) -> None:
        """A file of the group is damaged, or the disk cannot read it."""
        with self._lock:
            if name in self._open:
                return
            self._open[name] = str(error)
            self._found += 1
        log.error("damage found", group=self._group, file=name, reason=str(error))

    def repaired(self, name: str, what: str) -> None:
        """The file is intact again."""
        with self._lock:
            if self._open.pop(name, None) is None:
                return
            self._repaired += 1
        log.warning("damage repaired", group=self._group, file=name, by=what)

    def overview(self) -> dict[str, object]:
        """Counts and open damage, as JSON."""
        with self._lock:
            return {
                "damage_found": self._found,
                "damage_repaired": self._repaired,
                "damaged": dict(self._open),
            }


def intact_frames(
    file: File, start: int, stop: int, after: int, damaged: Callable[[Exception], None]
) -> Iterator[Frames]:
    """The intact frames of `file[start:stop]`; `damaged` is called for each damaged place."""
    at: int | None = start
    while at is not None:
        try:
            for frames in scan_frames(file, at, stop, after):
                after = int(frames.positions[-1])
                yield frames
            return
        except DamagedFrame as error:
            damaged(error)
            after = max(after, error.after or -1)
            at = _next_run(file, error.offset + 1, stop, after + 1)
            # At least one entry was lost here.
            after += 1


def _next_run(file: File, start: int, stop: int, after: int) -> int | None:
    """The offset from which intact frames fill the rest of the range; None if there is none."""
    window = np.empty(max(stop - start, 0), dtype=np.uint8)
    try:
        got = file.readinto(window.data, start) if len(window) else 0
    except OSError as error:
        raise ReadFailed(file.path, start, error) from error
    # A frame is at least as long as its header.
    places = np.empty(len(window) // HEADER_BYTES + 1, np.int64)
    positions = np.empty_like(places)
    at = 0
    while True:
        found, _ = frame_kernels.resync(window, at, got, after)
        if found < 0:
            return None
        _, _, status = frame_kernels.scan(window, found, got, after, places, positions)
        if status == frame_kernels.END:
            return start + int(found)
        at = int(found) + 1
