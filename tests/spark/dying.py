"""Rewrites that lose their process in the middle, once; they run in Spark's workers."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from lithify.topics.compaction.shrink_batches import TopicRewriting

if TYPE_CHECKING:
    from lithify.log.dead_set.dead_set import Parts
    from lithify.log.segments.scan import Frames

__all__ = ["DyingRewriting", "parent_of"]


@dataclass(frozen=True, slots=True)
class DyingRewriting(TopicRewriting):
    """Kills its worker, or its worker's executor, while a target is half written."""

    marker: str = ""
    executor: bool = False

    def edit(self, frames: Frames, parts: Parts) -> Frames:
        """Die the first time."""
        try:
            with Path(self.marker).open("x"):
                pass
        except FileExistsError:
            return shrunk(self, frames, parts)
        # A worker is forked by a daemon, which the executor's JVM has started.
        victim = parent_of(os.getppid()) if self.executor else os.getpid()
        os.kill(victim, signal.SIGKILL)
        signal.pause()
        raise AssertionError


def shrunk(rewriting: TopicRewriting, frames: Frames, parts: Parts) -> Frames:
    """What a rewrite does that is not killed."""
    return TopicRewriting.edit(rewriting, frames, parts)


def parent_of(process: int) -> int:
    """The process that started a process."""
    stat = Path(f"/proc/{process}/stat").read_text()
    return int(stat.rpartition(")")[2].split()[1])
