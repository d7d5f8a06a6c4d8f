"""Compaction of blob stores. Start in `store_compaction.py`; what is live is in `live_blobs.py`."""

__all__: list[str] = []
