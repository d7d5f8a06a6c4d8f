"""Tables over HTTP: their definitions, rows and transactions."""

__all__: list[str] = []
