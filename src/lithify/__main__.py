"""`lithify` and `python -m lithify`: start the command line.

Importing the commands takes a fraction of a second. Until then, Ctrl-C ends the process at once, as
with the default signal handler; from then on it is a `KeyboardInterrupt`, which each command
handles.
"""

from __future__ import annotations

import gc
import signal

signal.signal(signal.SIGINT, signal.SIG_DFL)

__all__ = ["main"]


def main() -> None:
    """Run the command of this process."""
    from lithify.cli.quick_imports import without_collections  # noqa: PLC0415  (see above)

    with without_collections():
        from lithify.cli.main import app  # noqa: PLC0415

    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        app()
    finally:
        # The last collection, at exit, would visit a million objects of imported modules: 50 ms.
        gc.freeze()


if __name__ == "__main__":
    main()
