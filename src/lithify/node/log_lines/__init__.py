"""Log lines on stderr; see `stderr_log.py`."""

__all__: list[str] = []
