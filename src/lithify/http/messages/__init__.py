"""Messages over HTTP: produce, read, the newest of a key."""

__all__: list[str] = []
