"""The process that Spark forks its Python workers from, with the code of the tasks loaded.

Spark starts it by `python -m lithify.pipeline.daemon`.

1. It imports the modules that `LITHIFY_PRELOAD` names, with a comma in between.
2. A module that has a function `warm_up` has it called: compiled code is loaded by its first call,
   and what is loaded here no worker has to load.
3. What is loaded is put out of the garbage collector's sight: a worker collects after each task,
   and would walk over all of it each time.
4. The memory that a task gives back stays with its process, up to `KEPT_BYTES`: the next one needs
   as much, and to get each page anew from the system takes a tenth of the time of indexing.
5. It forks workers for Spark. They and the socket by which Spark asks for them, which has no
   password, are for this user only.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import os
from contextlib import suppress
from typing import TYPE_CHECKING

from pyspark import daemon

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["PRELOAD", "load"]

PRELOAD = "LITHIFY_PRELOAD"

KEPT_BYTES = 512 * 2**20
LARGE_BYTES = 4 * 2**20
"""Arrays from this size on go back at once: numpy has them made of large pages, which are cheap."""

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
"""Of `mallopt(3)`."""


def load(names: Sequence[str]) -> None:
    """Steps 1 and 2, in any process that is going to run tasks."""
    for name in names:
        warm_up = getattr(importlib.import_module(name), "warm_up", None)
        if warm_up is not None:
            warm_up()


def _keep_memory() -> None:
    """Step 4, where the C library is one that can."""
    with suppress(AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_TRIM_THRESHOLD, KEPT_BYTES)
        mallopt(_M_MMAP_THRESHOLD, LARGE_BYTES)


def main() -> None:
    """Load, freeze, serve."""
    load([name for name in os.environ.get(PRELOAD, "").split(",") if name])
    gc.collect()
    gc.freeze()
    _keep_memory()
    os.umask(0o077)
    daemon.manager()


if __name__ == "__main__":
    main()
