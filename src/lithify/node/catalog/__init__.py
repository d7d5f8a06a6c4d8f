"""What a node does for the catalog of its cluster."""

__all__: list[str] = []
