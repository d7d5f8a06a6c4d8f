"""The process from which Spark forks its Python workers, with the code of the tasks loaded.

Spark starts it by `python -m lithify.pipeline.python_daemon`.

1. Import the modules of `LITHIFY_PRELOAD`, separated by commas.
2. Call the function `warm_up` of each module that has one: the first call loads compiled code, and
   the workers inherit it.
3. Exclude all loaded objects from garbage collection: a worker collects after each task, and would
   scan all of them each time.
4. Keep up to `KEPT_BYTES` of memory that a task frees: the next task needs as much, and allocating
   each page again takes a tenth of the time of indexing.
5. Fork workers for Spark. The workers, and the socket on which Spark requests them, which has no
   password, are accessible to this user only.
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
"""Larger arrays are returned to the system at once: numpy allocates them in large pages, which are
cheap.
"""

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
"""Options of `mallopt(3)`."""


def load(names: Sequence[str]) -> None:
    """Steps 1 and 2, in any process that will run tasks."""
    for name in names:
        warm_up = getattr(importlib.import_module(name), "warm_up", None)
        if warm_up is not None:
            warm_up()


def _keep_memory() -> None:
    """Step 4, if the C library supports it."""
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
