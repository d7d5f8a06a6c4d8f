"""Commands: what can be asked of the catalog; see `batch.py`."""

__all__: list[str] = []
