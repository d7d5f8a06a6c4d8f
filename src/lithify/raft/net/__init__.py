"""Connections between nodes and clients, and their frames. Start in `transport.py`."""

__all__: list[str] = []
