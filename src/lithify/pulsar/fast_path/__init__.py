"""The two paths of every message, compiled: SEND frames in, MESSAGE frames out."""

__all__: list[str] = []
