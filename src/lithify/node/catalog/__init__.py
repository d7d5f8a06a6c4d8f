"""The catalog in a node: its definitions, what each version opens, and its compaction."""

__all__: list[str] = []
