"""Free disk space: a run whose output cannot fit is refused before it writes anything.

The limit is `Budget.scratch_bytes`, and at most what is free. Called by the compactor before
it writes the journal of a run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lithify.errors import RunRefused

if TYPE_CHECKING:
    from lithify.fs.base import FileSystem

__all__ = ["reserve_scratch"]


def reserve_scratch(
    fs: FileSystem, path: str, needed_bytes: int, scratch_bytes: int | None
) -> None:
    """Refuse the run now if its output cannot fit, instead of failing half way.

    `path` must exist on the disk to be written to; `scratch_bytes` is the limit of the budget.
    """
    available_bytes = fs.free_bytes(path)
    limit_bytes = available_bytes if scratch_bytes is None else scratch_bytes
    if needed_bytes > min(available_bytes, limit_bytes):
        limit = "none" if scratch_bytes is None else f"{scratch_bytes} bytes"
        raise RunRefused(
            "scratch space",
            f"needs {needed_bytes} bytes on the disk of {path}, "
            f"available {available_bytes} bytes, limit {limit}",
        )
