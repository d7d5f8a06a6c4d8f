"""Copies the live frames of segments into new ones."""

__all__: list[str] = []
