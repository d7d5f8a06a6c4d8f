"""Sets of positions: what is live, and what is dead but still in a kept segment.

A value without any I/O. It stands below `log/`, which reads dead sets, and is used by everything
above.
"""

from lithify.liveset.liveset import LiveSet, LiveSetBuilder

__all__ = ["LiveSet", "LiveSetBuilder"]
