"""`lithify serve` with one more listener of the catalog, which writes what it is told to a file.

    VERSIONS=FILE python -m tests.cli.listening_serve serve --data …

Each start of a process writes `start`. Then one line per call: the versions before and after, 1 if
the listener was told of an update, the activation, and a checksum of the objects after it.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING
from zlib import crc32

from lithify.__main__ import main
from lithify.catalog.manager.manager import CatalogManager

if TYPE_CHECKING:
    from lithify.catalog.catalog import Catalog
    from lithify.catalog.changes import CatalogUpdate

FILE = "VERSIONS"


class WritingListener:
    """See the module; a line is written by one system call, so a kill leaves whole lines."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        self._write("start")

    def _write(self, line: str) -> None:
        os.write(self._file, f"{line}\n".encode())

    async def __call__(self, before: Catalog, after: Catalog, update: CatalogUpdate | None) -> None:
        found = after.objects.values()
        objects = sorted((each.id, each.kind.value, each.updated) for each in found)
        checksum = crc32(repr(objects).encode())
        told = 0 if update is None else 1
        self._write(f"{before.version} {after.version} {told} {after.activation} {checksum}")


def listen() -> None:
    """Add the listener to the catalog of this process."""
    start = CatalogManager.start

    async def start_with_listener(self: CatalogManager) -> None:
        self.listen(WritingListener(os.environ[FILE]), replayed=True)
        await start(self)

    CatalogManager.start = start_with_listener  # type: ignore[method-assign]


if __name__ == "__main__":
    listen()
    main()
