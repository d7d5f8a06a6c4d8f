"""Keeps append-only logs small: one compaction kernel for topics, blobs, raft and a catalog.

    with lithify.open("data") as node:
        topic = node.topics.create("persistent://public/default/orders")

Start reading in `log/log.py` (the log), then `compaction/run/compactor.py` (how it is compacted).
Nothing is imported here, so that a command or a Spark worker loads only what it uses.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lithify.node.node import Node

__all__ = ["__version__", "open"]

__version__ = "0.1.0"


def open(data: str, **settings: Any) -> Node:  # noqa: A001  (it is called `lithify.open`)
    """Open a data directory in this process; `settings` are those of `NodeSettings`.

    Settings files and the environment are not read.
    """
    from lithify.node.node import Node  # noqa: PLC0415
    from lithify.node.settings import NodeSettings  # noqa: PLC0415

    return Node(NodeSettings(data, **settings))
