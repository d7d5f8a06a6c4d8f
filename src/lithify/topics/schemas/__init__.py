"""The schemas of a topic: versions and compatibility."""

__all__: list[str] = []
