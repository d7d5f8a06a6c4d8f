"""Subscriptions: dispatch, cursors, consumers, key_shared. Start in `subscription.py`."""

__all__: list[str] = []
