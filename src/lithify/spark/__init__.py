"""The Spark data source: topics as DataFrames. Start in `source.py`."""

__all__: list[str] = []
