"""Statistics of a topic: backlog, rates, counts per client."""

__all__: list[str] = []
