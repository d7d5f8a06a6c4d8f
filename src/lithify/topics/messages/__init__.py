"""The format of messages: metadata, keys, batches. Start in `message.py`."""

__all__: list[str] = []
