"""Compaction of topics. Start in `topic_compaction.py`; what is live: `live_messages.py`."""

__all__: list[str] = []
