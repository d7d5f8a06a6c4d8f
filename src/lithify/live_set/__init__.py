"""Sets of positions: live ones, and dead ones that are still in a kept segment.

Pure values, without I/O. The package is below `log/`, which reads dead sets, and is used by all
packages above.
"""

from lithify.live_set.live_set import LiveSet, LiveSetBuilder

__all__ = ["LiveSet", "LiveSetBuilder"]
