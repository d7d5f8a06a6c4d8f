"""Tools for tests: a file system that fails by rules, stages and stories of the Raft core."""

__all__: list[str] = []
