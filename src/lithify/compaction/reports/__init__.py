"""The reports of runs, their history, and the status of a log."""

__all__: list[str] = []
