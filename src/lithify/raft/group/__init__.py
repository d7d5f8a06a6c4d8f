"""One member of one group: core, storage and machine together. Start in `group.py`."""

__all__: list[str] = []
