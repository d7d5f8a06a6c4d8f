"""A replicated log that keeps what its state machine still needs. Start in `storage/storage.py`."""

__all__: list[str] = []
