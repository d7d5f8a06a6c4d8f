"""The catalog in a node: definitions as a view of a version, and what each version opens."""

__all__: list[str] = []
