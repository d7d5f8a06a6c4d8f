"""A node in a thread of this process whose event loop may not touch files, with disks that stop.

`WatchedDisk` replaces the system calls of `os` that wait for a disk. A call from the thread of the
loop is noted with its stack. A read of the page cache (RWF_NOWAIT) waits for nothing and is
allowed; it finds nothing cached while the disk is `cold`. Calls on paths that contain a given text
can be held until they are released, which is the slowest disk there is.

Not seen: faults of mapped memory, and what libraries in C do by themselves. Buffered writes
(`pwrite`) are not checked: the loop makes them, as it always did.
"""

from __future__ import annotations

import asyncio
import builtins
import errno
import os
import threading
import traceback
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Self

from lithify.http import create_app
from lithify.node.node import Node
from tests.patience import PROCESS_S_MAX

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import pytest

    from lithify.node.server import Addresses
    from lithify.node.settings import NodeSettings

OF_FILES = ("pread", "preadv", "read", "readv", "fsync", "fdatasync", "ftruncate", "fstat")
OF_NAMES = (
    "open",
    "rename",
    "replace",
    "unlink",
    "remove",
    "link",
    "mkdir",
    "rmdir",
    "listdir",
    "scandir",
    "lstat",
    "statvfs",
)


class WatchedDisk:
    """See the module."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.in_loop: list[str] = []
        """Calls from the thread of the loop, and where they came from."""
        self.cold = False
        self.loop_thread = 0
        self._held = ""
        self._holding = threading.Event()
        self._go = threading.Event()
        for name in (*OF_FILES, *OF_NAMES):
            monkeypatch.setattr(os, name, self._watched(name, getattr(os, name)))
        monkeypatch.setattr(builtins, "open", self._watched("open()", builtins.open))

    def _watched(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def watched(*given: Any, **named: Any) -> Any:
            cached = name == "preadv" and len(given) > 3 and given[3] & os.RWF_NOWAIT
            held = self._held and self._held in path_of(given[0] if given else "")
            if cached and (held or self.cold):
                raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
            if threading.get_ident() == self.loop_thread and not cached:
                stack = "".join(traceback.format_stack()[-12:-1])
                self.in_loop.append(f"{name}{given[:1]}:\n{stack}")
            if held:
                self._holding.set()
                assert self._go.wait(PROCESS_S_MAX), "held and never released"
            return call(*given, **named)

        return watched

    @contextmanager
    def holding(self, part: str) -> Iterator[None]:
        """Stop every call on a path with this text in it, until the block ends."""
        self._holding.clear()
        self._go.clear()
        self._held = part
        try:
            yield
        finally:
            self._held = ""
            self._go.set()

    def wait_until_held(self) -> None:
        """Until some call has been stopped."""
        assert self._holding.wait(PROCESS_S_MAX), "nothing was read or written"


def path_of(file: object) -> str:
    """The path that a system call is about, which may be given as a descriptor."""
    if isinstance(file, int):
        try:
            return os.readlink(f"/proc/self/fd/{file}")
        except OSError:
            return ""
    return str(file)


class NodeInThread:
    """A node that serves in a thread until the block ends."""

    def __init__(self, settings: NodeSettings, disk: WatchedDisk) -> None:
        self._settings = settings
        self._disk = disk
        self._ready = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()))
        self.pulsar_port = self.http_port = 0

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        with Node(self._settings) as node:
            await node.serve(stop=self._stop, ready=self._is_ready, make_app=create_app)

    def _is_ready(self, addresses: Addresses) -> None:
        assert addresses.http is not None
        self.pulsar_port = int(addresses.pulsar.rpartition(":")[2])
        self.http_port = int(addresses.http.rpartition(":")[2])
        self._disk.loop_thread = threading.get_ident()
        self._ready.set()

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._ready.wait(PROCESS_S_MAX)
        return self

    def __exit__(self, *_: object) -> None:
        self._disk.loop_thread = 0
        assert self._loop is not None
        assert self._stop is not None
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(PROCESS_S_MAX)
        assert not self._thread.is_alive()
