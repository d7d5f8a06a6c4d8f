"""`python -m tests.cli.cluster_server …`: `lithify serve` with groups of a key-value store.

So that the Raft nodes of such processes can be tested by themselves.
"""

from __future__ import annotations

import sys

from lithify.cli.main import app
from lithify.node import server
from lithify.raft.kv.machine import kv_machine


def main() -> None:
    server.cluster_parts = lambda settings: kv_machine
    sys.argv = ["lithify", "serve", *sys.argv[1:]]
    app()


if __name__ == "__main__":
    main()
