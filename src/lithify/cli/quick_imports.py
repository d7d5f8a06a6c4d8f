"""Imports without the garbage collector, for commands whose start takes as long as their imports.

A collection during imports takes 0.1 s or more, and finds no garbage. Used by the modules of this
package only.
"""

from __future__ import annotations

import gc
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["without_collections"]


@contextmanager
def without_collections() -> Iterator[None]:
    """Disable the garbage collector while the block runs."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
