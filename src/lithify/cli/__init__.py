"""The command `lithify`, one module or package per noun. Start reading in `main.py`."""

from __future__ import annotations

__all__ = []
