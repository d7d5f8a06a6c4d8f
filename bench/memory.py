"""The memory of this process and of all it has started, while something runs.

Ten times a second the proportional set sizes are added up: a page that several processes share,
such as what Spark's workers have in common with the process they were forked from, counts once.
"""

from __future__ import annotations

import os
import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Peak", "watched"]

EVERY_S = 0.1


class Peak:
    """The highest sum seen."""

    def __init__(self) -> None:
        self.bytes = 0

    @property
    def mb(self) -> float:
        """In megabytes."""
        return self.bytes / 1e6

    def look(self) -> None:
        """Add up once."""
        self.bytes = max(self.bytes, sum(map(_pss_bytes, _family(os.getpid()))))


@contextmanager
def watched(peak: Peak) -> Iterator[None]:
    """Look until the block ends, and once more."""
    over = threading.Event()

    def look() -> None:
        while not over.wait(EVERY_S):
            peak.look()

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        peak.look()


def _family(pid: int) -> list[int]:
    """The process and its descendants; those that end meanwhile are not missed."""
    parents: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with suppress(OSError), open(f"/proc/{name}/stat") as file:
                # The name of a program is in parentheses and may hold anything.
                parent = int(file.read().rpartition(")")[2].split()[1])
                parents.setdefault(parent, []).append(int(name))
    found = [pid]
    for each in found:
        found.extend(parents.get(each, ()))
    return found


def _pss_bytes(pid: int) -> int:
    with suppress(OSError), open(f"/proc/{pid}/smaps_rollup") as file:
        for line in file:
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    return 0
