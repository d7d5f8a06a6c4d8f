"""Tasks that run in the process or on Spark, and the key indexes they read."""

__all__: list[str] = []
