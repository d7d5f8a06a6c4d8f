"""Topics: keyed messages in a log, with subscriptions that remember what was acknowledged."""

__all__: list[str] = []
