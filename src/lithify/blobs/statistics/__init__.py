"""Statistics and forecasts of a blob store. Start in `statistics.py`."""

__all__: list[str] = []
