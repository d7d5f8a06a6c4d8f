"""Backup and restore of a data directory. Start in `backup.py`."""

__all__: list[str] = []
