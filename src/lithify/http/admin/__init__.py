"""Pulsar's admin paths: tenants, namespaces, topics, subscriptions, schemas, compaction."""

__all__: list[str] = []
