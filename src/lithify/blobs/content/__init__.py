"""The content of blobs: in by `spool.py`, out by `reader.py`."""

__all__: list[str] = []
