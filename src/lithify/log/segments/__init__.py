"""Segment files: frames, block index, scan. Start in `segment_file.py`."""

__all__: list[str] = []
