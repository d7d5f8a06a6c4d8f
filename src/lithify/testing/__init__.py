"""Tools for tests: a faulty file system; a simulation and scenarios of the Raft core."""

__all__: list[str] = []
