"""Backups of groups; `raft/restore.py` creates data directories from them."""

__all__: list[str] = []
