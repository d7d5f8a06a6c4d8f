"""Compiles the loops over buffers, and caches the compiled code where it is safe to load.

    from lithify.compiled import njit

    @njit(nogil=True)
    def kernel(…): …

`njit` is numba's, with a cache. Compiling everything takes a minute, loading it a second. The cache
contains code, so a directory that another user can write to is never used (`cache_directories.py`).
The first usable one of these is the cache of all kernels of the process:

1. `$NUMBA_CACHE_DIR`, if it is set;
2. `__pycache__` beside the source, as for Python's own compiled code: a user who can write there
   can change the source as well;
3. `kernels` in the user's cache;
4. the directory in `$LITHIFY_KERNEL_CACHE`, which the parent process has set;
5. the argument of a later `offer_cache`: a node offers a directory in its data directory.

Without any of them each process compiles the kernels; `offer_cache` logs that, or the directory
that it uses. A cache that cannot be read or written, for example on a full disk, is ignored.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numba
from numba.core.caching import FunctionCache

from lithify.cache_directories import is_trusted, user_cache
from lithify.logger import get_logger

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["KERNEL_CACHE", "cache_to_offer", "njit", "offer_cache"]

KERNEL_CACHE = "LITHIFY_KERNEL_CACHE"

log = get_logger("lithify")

_IN_TREE = ""
"""Stands for a cache beside the source."""


class _Kernels:
    """All kernels that this process has defined, and the directory of their cache."""

    def __init__(self) -> None:
        self._is_checked = False
        self._place: str | None = None
        self._waiting: list[Any] = []
        self.offered: str | None = os.environ.get(KERNEL_CACHE) or None

    def add(self, dispatcher: Any) -> None:
        """Set the cache of a kernel, now or when one is offered."""
        if not self._is_checked:
            self._is_checked = True
            self._place = _find_place(self.offered)
        if self._place is None:
            self._waiting.append(dispatcher)
        else:
            self._enable(dispatcher, self._place)

    def offer(self, directory: str) -> None:
        """See `offer_cache`."""
        self.offered = directory
        if not self._waiting:
            return
        if not is_trusted(directory):
            log.warning(
                "compiled code is not cached: it is compiled at each start", tried=directory
            )
            return
        log.info("compiled code is cached in the data directory", directory=directory)
        self._place = directory
        waiting, self._waiting = self._waiting, []
        for dispatcher in waiting:
            self._enable(dispatcher, directory)

    def _enable(self, dispatcher: Any, place: str) -> None:
        before = numba.config.CACHE_DIR
        # Read when the cache is created and never again: other users of numba have their own.
        numba.config.CACHE_DIR = place
        try:
            dispatcher._cache = _Cache(dispatcher.py_func)  # noqa: SLF001  as its enable_caching
        except RuntimeError:
            # None of numba's own directories is writable.
            self._waiting.append(dispatcher)
        finally:
            numba.config.CACHE_DIR = before


class _Cache(FunctionCache):  # type: ignore[misc]
    """A cache whose errors count as a miss."""

    def load_overload(self, *given: Any) -> Any:
        """Load from the cache; None if it is missing or cannot be read."""
        with suppress(Exception):
            return super().load_overload(*given)
        return None

    def save_overload(self, *given: Any) -> None:
        """Store it, if there is space."""
        with suppress(Exception):
            super().save_overload(*given)


def _find_place(offered: str | None) -> str | None:
    given = os.environ.get("NUMBA_CACHE_DIR")
    if given and is_trusted(given):
        return given
    if _is_writable(f"{os.path.dirname(os.path.abspath(__file__))}/__pycache__"):
        return _IN_TREE
    for directory in (f"{user_cache(os.environ)}/kernels", offered):
        if directory and is_trusted(directory):
            return directory
    return None


def _is_writable(directory: str) -> bool:
    with suppress(OSError):
        os.makedirs(directory, exist_ok=True)
    return os.access(directory, os.R_OK | os.W_OK | os.X_OK)


_kernels = _Kernels()


def njit(**options: Any) -> Callable[[Any], Any]:
    """Numba's decorator of that name, with the cache of this process."""

    def decorate(function: Any) -> Any:
        dispatcher = numba.njit(**options)(function)
        _kernels.add(dispatcher)
        return dispatcher

    return decorate


def offer_cache(directory: str) -> None:
    """Cache compiled code there, and log it, if this process has found no better directory."""
    _kernels.offer(directory)


def cache_to_offer() -> str:
    """The value of `$LITHIFY_KERNEL_CACHE` for child processes."""
    return _kernels.offered or ""
