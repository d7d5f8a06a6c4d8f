"""A client of Raft nodes. Start in `client.py`."""

__all__: list[str] = []
