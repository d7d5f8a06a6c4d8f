"""The directories of a node's topics: inventory, deletion, unclaimed data."""

__all__: list[str] = []
