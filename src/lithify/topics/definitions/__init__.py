"""Tenants, namespaces, topics and their settings, as values in one file."""

__all__: list[str] = []
