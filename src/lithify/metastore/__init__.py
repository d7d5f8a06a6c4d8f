"""A replicated key-value store with revisions, watches and leases; see `metastore.py`."""

__all__: list[str] = []
