"""The process that Spark forks its Python workers from, with the code of the tasks loaded.

Spark starts it by `python -m lithify.pipeline.daemon`.

1. It imports the modules that `LITHIFY_PRELOAD` names, with a comma in between.
2. A module that has a function `warm_up` has it called: compiled code is loaded by its first call,
   and what is loaded here no worker has to load.
3. What is loaded is put out of the garbage collector's sight: a worker collects after each task,
   and would walk over all of it each time.
4. It forks workers for Spark.
"""

from __future__ import annotations

import gc
import importlib
import os
from typing import TYPE_CHECKING

from pyspark import daemon

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["PRELOAD", "load"]

PRELOAD = "LITHIFY_PRELOAD"


def load(names: Sequence[str]) -> None:
    """Steps 1 and 2, in any process that is going to run tasks."""
    for name in names:
        warm_up = getattr(importlib.import_module(name), "warm_up", None)
        if warm_up is not None:
            warm_up()


def main() -> None:
    """Load, freeze, serve."""
    load([name for name in os.environ.get(PRELOAD, "").split(",") if name])
    gc.collect()
    gc.freeze()
    daemon.manager()


if __name__ == "__main__":
    main()
