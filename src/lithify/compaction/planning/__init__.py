"""The horizon and the plan, as values."""

__all__: list[str] = []
