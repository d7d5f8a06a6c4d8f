"""Backups of groups, and new data directories from them."""

__all__: list[str] = []
