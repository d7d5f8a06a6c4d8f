"""Blob stores over HTTP. Start in `stores_and_blobs.py`."""

__all__: list[str] = []
