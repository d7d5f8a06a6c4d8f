"""Which log is compacted next: triggers, queues, one run per disk."""

__all__: list[str] = []
