"""One compaction run, from horizon to report. Start in `compactor.py`."""

__all__: list[str] = []
