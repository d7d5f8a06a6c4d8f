"""A key-value store as a replicated machine. Start in `machine.py`."""

__all__: list[str] = []
