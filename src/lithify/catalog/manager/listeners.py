"""Listeners of the catalog: each gets every version once, in order, before the version is ready.

Versions are announced as they are applied, and delivered by a task of their own: a slow listener
does not delay the catalog, and may itself change it and wait for that version to be applied. The
listeners of one version run at the same time; the next version is delivered when all of them have
finished. A version is ready when its listeners have finished.

A listener that raises is logged, once for each version that it raises for. The others and the
readiness are not affected.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NamedTuple, Protocol

from lithify.catalog.manager.version_progress import VersionProgress
from lithify.logger import get_logger

if TYPE_CHECKING:
    from lithify.catalog.catalog import Catalog
    from lithify.catalog.changes import CatalogUpdate

__all__ = ["CatalogListener", "CatalogListeners"]

_log = get_logger("lithify.catalog")


class CatalogListener(Protocol):
    """Called for each version; a coroutine function."""

    async def __call__(
        self, before: Catalog, after: Catalog, update: CatalogUpdate | None, /
    ) -> None:
        """`update` made `after` from `before`.

        It is None if this node has missed versions in between, and a snapshot has replaced them, or
        at the start; then only the two catalogs tell what has changed.
        """


class _Announcement(NamedTuple):
    before: Catalog
    after: Catalog
    update: CatalogUpdate | None
    listeners: tuple[CatalogListener, ...]


class CatalogListeners:
    """See the module. One event loop."""

    def __init__(self) -> None:
        self.ready = VersionProgress()
        self._listeners: tuple[CatalogListener, ...] = ()
        self._with_replay: tuple[CatalogListener, ...] = ()
        self._announced: asyncio.Queue[_Announcement] = asyncio.Queue()

    def add(self, listener: CatalogListener, *, replayed: bool) -> None:
        """Deliver the versions that are announced from here on; `replayed` ones only if asked."""
        self._listeners += (listener,)
        if replayed:
            self._with_replay += (listener,)

    def announce(
        self, before: Catalog, after: Catalog, update: CatalogUpdate | None, *, replayed: bool
    ) -> None:
        """A version was applied, or is `replayed` at the start."""
        listeners = self._with_replay if replayed else self._listeners
        self._announced.put_nowait(_Announcement(before, after, update, listeners))

    async def run(self) -> None:
        """Deliver what is announced, until cancelled."""
        while True:
            before, after, update, listeners = await self._announced.get()
            results = await _deliver_to_all(listeners, before, after, update)
            for listener, result in zip(listeners, results, strict=True):
                if result is not None:
                    _log.error(
                        "a listener of the catalog failed",
                        listener=repr(listener),
                        version=after.version,
                        exc_info=result,
                    )
            self.ready.advance(after.version)


async def _deliver_to_all(
    listeners: tuple[CatalogListener, ...],
    before: Catalog,
    after: Catalog,
    update: CatalogUpdate | None,
) -> list[BaseException | None]:
    """The errors of the listeners, None for each that has finished."""
    if len(listeners) == 1:
        # No task of its own: changes wait for it, and each turn of the loop takes time.
        try:
            await listeners[0](before, after, update)
        except BaseException as error:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            # Also that of a task that the listener has cancelled.
            return [error]
        return [None]
    deliveries = [_deliver(listener, before, after, update) for listener in listeners]
    # With the exceptions as results, also that of a task that a listener has cancelled.
    return await asyncio.gather(*deliveries, return_exceptions=True)


async def _deliver(
    listener: CatalogListener, before: Catalog, after: Catalog, update: CatalogUpdate | None
) -> None:
    await listener(before, after, update)
