"""A node: a data directory, open in this process.

    import lithify

    with lithify.open("data") as node:
        topic = node.topics.create("persistent://public/default/orders")
        topic.append(key="4711", value=b"paid")
        for message in topic.read():
            ...

    DIRECTORY/LOCK          the owner; a second process is refused
    DIRECTORY/definitions   tenants, namespaces, topics, blob stores
    DIRECTORY/RESERVE       space reserved for a full disk, see `fs/full_disk_reserve.py`
    DIRECTORY/topics/       see `topics/topics.py`
    DIRECTORY/blobs/        see `blobs/stores.py`; `node.blobs.create("photos", …)` creates a store
    DIRECTORY/kernels/      compiled code if the user has no home, see `compiled.py`

As a library a node has no thread, no socket and no task: each call does its work on the caller's
thread before it returns. `serve` adds a broker for the same topics and runs in an event loop until
it is stopped.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Self

from lithify.blobs.stores import BlobStores
from lithify.clock import SystemClock
from lithify.compaction.scheduling.run_queue import RunQueue
from lithify.compiled import offer_cache
from lithify.events import ignore_events
from lithify.fs import LocalFileSystem
from lithify.fs.full_disk_reserve import Reserve
from lithify.fs.permissions import warn_if_shared
from lithify.topics.directories.data_directory import check_no_backup
from lithify.topics.topics import Topics

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable
    from types import TracebackType

    from lithify.clock import Clock
    from lithify.events import EventSink
    from lithify.fs import FileSystem
    from lithify.node.server import Addresses, MakeApp
    from lithify.node.settings import NodeSettings

__all__ = ["Node"]


class Node:
    """A data directory and its contents; one thread at a time."""

    def __init__(
        self,
        settings: NodeSettings,
        *,
        fs: FileSystem | None = None,
        clock: Clock | None = None,
        events: EventSink = ignore_events,
        what: str = "library",
    ) -> None:
        """Open the data directory; `LogLocked` names the process that has it open.

        `what` describes the owner to other processes, beside the process id.
        """
        self.settings = settings
        self.fs = fs or LocalFileSystem()
        self.clock = clock or SystemClock()
        # Absolute, because tasks on other machines receive paths below it.
        directory = os.path.abspath(settings.data)
        check_no_backup(self.fs, directory)
        if isinstance(self.fs, LocalFileSystem):
            self.fs.mkdir(directory)
            offer_cache(f"{directory}/kernels")
        self.queue = RunQueue(self.clock)
        """The queue of the runs of topics and blob stores."""
        # Topics first: they lock the directory and read all definitions.
        self.topics = Topics(
            self.fs,
            directory,
            settings=settings.topics,
            clock=self.clock,
            events=events,
            owner=f"{what}, pid {os.getpid()}",
            queue=self.queue,
        )
        try:
            self.blobs = BlobStores(
                self.fs,
                directory,
                self.topics.definitions,
                settings=settings.blobs,
                clock=self.clock,
                events=events,
                queue=self.queue,
            )
        except BaseException:
            self.topics.close()
            raise
        warn_if_shared(self.fs, directory)
        self._reserve = Reserve(self.fs, directory)
        self._reserve.keep()
        self.topics.reserve = self.blobs.reserve = self._reserve
        self._closed = False

    async def serve(
        self,
        *,
        stop: asyncio.Event,
        ready: Callable[[Addresses], None],
        make_app: MakeApp | None = None,
    ) -> None:
        """Serve clients until `stop` is set; see `server.py`. The node stays open."""
        # A library user needs no sockets.
        from lithify.node.server import serve  # noqa: PLC0415

        await serve(self, stop=stop, ready=ready, make_app=make_app)

    def close(self) -> None:
        """Make everything durable and release the directory. Idempotent."""
        if not self._closed:
            self._closed = True
            with self._reserve.if_full():
                try:
                    self.blobs.close()
                finally:
                    self.topics.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
