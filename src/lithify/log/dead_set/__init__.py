"""Dead sets of segments: entries that are dead in a segment that is kept."""

__all__: list[str] = []
