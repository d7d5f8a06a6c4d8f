"""What a run may use: bytes per second, memory, disk; slower while users wait."""

__all__: list[str] = []
