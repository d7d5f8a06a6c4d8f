"""The catalog of a running node; see `manager.py`."""

__all__: list[str] = []
