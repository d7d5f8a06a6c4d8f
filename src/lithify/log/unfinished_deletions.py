"""Deletions that a start finishes, or leaves to the next one.

    with may_stay_unfinished(log, "topic persistent://public/default/orders"):
        ...                                         # remove the definition, and the files

A disk that is full or fails, or a cluster without a quorum, must not stop a node from serving
everything else. What is marked as deleted stays out of use, and the next start, or the next request
to delete it, continues. Damage is raised.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from lithify.errors import Corrupt, LithifyError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lithify.logger import Logger

__all__ = ["may_stay_unfinished"]


@contextmanager
def may_stay_unfinished(log: Logger, what: str) -> Iterator[None]:
    """See the module."""
    try:
        yield
    except Corrupt:
        raise
    except (LithifyError, OSError) as error:
        log.warning("a deletion is not finished", of=what, reason=str(error))
