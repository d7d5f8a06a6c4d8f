"""A node: one process put together from the parts. Start reading in `node.py`."""

__all__: list[str] = []
