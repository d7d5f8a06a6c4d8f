"""Reads, verifies and copies the directory of a blob store that no process serves."""

__all__: list[str] = []
