"""The cluster, its Raft groups and its catalog over HTTP."""

__all__: list[str] = []
