"""The cluster's versioned definitions; see `catalog.py`."""

__all__: list[str] = []
