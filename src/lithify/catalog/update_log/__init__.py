"""The catalog's update log in the metastore; see `update_log.py`."""

__all__: list[str] = []
