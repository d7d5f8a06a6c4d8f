"""Erases the content of deleted blobs before any compaction. Start in `erase.py`."""

__all__: list[str] = []
