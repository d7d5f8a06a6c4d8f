"""Replication between blob stores. Start in `replication.py`."""

__all__: list[str] = []
