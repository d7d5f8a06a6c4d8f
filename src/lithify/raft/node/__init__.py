"""A process that runs members of many groups. Start in `node.py`."""

__all__: list[str] = []
