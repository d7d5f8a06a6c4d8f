"""The command `lithify`, one module a noun. Start reading in `main.py`."""

from __future__ import annotations

__all__ = []
