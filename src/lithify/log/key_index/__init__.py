"""Key indexes of segments: key hash, position and byte range of each row."""

__all__: list[str] = []
