"""Replication between blob stores. Start in `read_progress.py`."""

__all__: list[str] = []
