"""`lithify serve` whose first wait for a quorum is ended by a signal to another thread.

The kernel may deliver a signal of a process to any of its threads, or just before the main thread
sleeps. Neither wakes the main thread, in which Python runs the handler. Used by
`test_cluster_serve.py`, which runs it with the arguments of `lithify`.
"""

from __future__ import annotations

import signal
import threading
from types import SimpleNamespace

import lithify.node.cluster
from lithify.__main__ import main


def interrupt(*_: object, **__: object) -> None:
    """Instead of the log line that says for whom the node waits."""
    signal.pthread_kill(threading.get_ident(), signal.SIGTERM)


if __name__ == "__main__":
    vars(lithify.node.cluster)["log"] = SimpleNamespace(info=interrupt)
    main()
