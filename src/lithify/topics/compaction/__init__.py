"""Compaction of topics. Start in `topic_compaction.py`; `live_messages.py` decides what is live."""

__all__: list[str] = []
