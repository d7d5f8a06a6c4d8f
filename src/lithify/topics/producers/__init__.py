"""The producers of a topic: access modes, fencing, deduplication."""

__all__: list[str] = []
