"""Keeps append-only logs small: one compaction kernel under topics, blobs, raft and a catalog.

Start reading in `log/log.py` (the log), then `compaction/run.py` (how it is made smaller). Nothing
is imported here, so that a command or a Spark worker loads only what it uses.
"""

from __future__ import annotations

__all__ = ["__version__"]

__version__ = "0.1.0"
