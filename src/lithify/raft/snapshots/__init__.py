"""Snapshots: taken, sent to a member, received from the leader."""

__all__: list[str] = []
