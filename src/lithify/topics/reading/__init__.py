"""Reads of a topic: for dispatch, the last message id, the newest message of a key."""

__all__: list[str] = []
