"""The data source of Spark: topics as DataFrames. Start in `source.py`."""

__all__: list[str] = []
