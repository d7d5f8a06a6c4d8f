"""Tasks for the tests of jobs; they run in other processes, so they are in a module."""

from __future__ import annotations

import os
import resource
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from pyspark import TaskContext

from lithify.errors import DamagedFile

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["die_once", "double", "fail", "fill_memory", "never_end", "partition", "refuse"]


def double(task: int, check: Callable[[], None]) -> int:
    """The quick one."""
    check()
    return 2 * task


def fail(task: int, check: Callable[[], None]) -> int:
    """Raise what a damaged file raises."""
    check()
    if task == 3:
        raise DamagedFile("some.seg", 77, "CRC-32C does not match")
    return task


def refuse(task: str, check: Callable[[], None]) -> int:
    """Raise what the file system raises."""
    check()
    return len(Path(task).read_bytes())


def die_once(task: str, check: Callable[[], None]) -> str:
    """Kill the worker the first time."""
    check()
    marker = Path(task)
    if not marker.exists():
        marker.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return task


def never_end(task: str, check: Callable[[], None]) -> None:
    """Say that it has begun and wait for ever, until it is killed."""
    Path(task).touch()
    signal.pause()


def partition(task: str, check: Callable[[], None]) -> int:
    """The number of the partition it runs in; -1 in the process that asked."""
    check()
    context = TaskContext.get()
    return -1 if context is None else context.partitionId()


def fill_memory(task: int, check: Callable[[], None]) -> int:
    """Write to this many arrays of 2 MiB; the pages that the second time took from the system."""
    taken = 0
    for _ in range(2):
        check()
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        held = [np.ones(2**18) for _ in range(task)]
        taken = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
        del held
    return taken
