"""Snapshots and checkpoints on disk, and their installation."""

__all__: list[str] = []
