"""The process that Spark forks its Python workers from, with the code of the tasks loaded.

Spark starts it by `python -m lithify.pipeline.daemon`. It imports the modules that
`LITHIFY_PRELOAD` names (with a comma in between), so that no worker has to load compiled kernels,
and puts what is loaded out of the garbage collector's sight: a worker collects after each task, and
would walk over all of it each time.
"""

from __future__ import annotations

import gc
import importlib
import os

from pyspark import daemon

__all__ = ["PRELOAD"]

PRELOAD = "LITHIFY_PRELOAD"


def main() -> None:
    """Load, freeze, serve."""
    for name in filter(None, os.environ.get(PRELOAD, "").split(",")):
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    daemon.manager()


if __name__ == "__main__":
    main()
