"""What a Raft node has on disk. Start in `storage.py`."""

__all__: list[str] = []
