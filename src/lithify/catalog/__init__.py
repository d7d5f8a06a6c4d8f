"""The versioned definitions of a cluster."""

__all__: list[str] = []
