"""The write-ahead log of all groups of a node. Start in `wal.py`."""

__all__: list[str] = []
