"""Definitions in a file.

    DIRECTORY/definitions        in a backup; in a data directory to be imported into the catalog
    DIRECTORY/definitions.copy   what the catalog says of this node, for other processes to read

A file is one checked line (`fs/checked_lines.py`) with the JSON form of the definitions, which each
change replaces atomically. It contains `logs` only if it is true.

One process changes a file; any process may read it.
"""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import TYPE_CHECKING

from lithify.errors import DamagedFile, InvalidInput, ReadFailed, WriteFailed
from lithify.fs import write_atomic
from lithify.fs.checked_lines import encode_line, read_lines
from lithify.topics.definitions.definition_store import DefinitionStore
from lithify.topics.definitions.definitions import Definitions

if TYPE_CHECKING:
    from collections.abc import Callable

    from lithify.fs import FileSystem

__all__ = [
    "COPY",
    "DEFINITIONS",
    "DefinitionsFile",
    "PendingDefinitions",
    "read_definitions",
    "read_definitions_in",
    "read_definitions_text",
    "write_definitions",
]

DEFINITIONS = "definitions"
COPY = "definitions.copy"


class DefinitionsFile(DefinitionStore):
    """The definitions in one file."""

    def __init__(self, fs: FileSystem, path: str) -> None:
        super().__init__()
        self._fs = fs
        self._path = path
        self._changing = threading.Lock()
        found = read_definitions(fs, path)
        self.found = found is not None
        self._current = found or Definitions.initial()

    @property
    def current(self) -> Definitions:
        """See `DefinitionStore`."""
        return self._current

    def change(self, edit: Callable[[Definitions], Definitions]) -> Definitions:
        """See `DefinitionStore`."""
        with self._changing:
            new = edit(self._current)
            if new != self._current:
                write_definitions(self._fs, self._path, new)
                self._current = new
        for watcher in self.watchers:
            watcher()
        return new


class PendingDefinitions(DefinitionStore):
    """The definitions of a data directory that no node has open, for a restore.

    What is added is written to the file `definitions`, which the next start imports. What the copy
    has is in the catalog, which only a node can change.
    """

    def __init__(self, fs: FileSystem, directory: str) -> None:
        super().__init__()
        self._fs = fs
        self._path = f"{directory}/{DEFINITIONS}"
        self._copy = read_definitions(fs, f"{directory}/{COPY}") or Definitions()
        found = read_definitions_in(fs, directory)
        self.found = found is not None
        self._current = found or Definitions.initial()
        pending = read_definitions(fs, self._path) or Definitions()
        self.restored = {*pending.topics, *pending.stores}
        """Is in the file, also if the copy has it: the import marks its directories as its own."""

    @property
    def current(self) -> Definitions:
        """See `DefinitionStore`."""
        return self._current

    def change(self, edit: Callable[[Definitions], Definitions]) -> Definitions:
        """See `DefinitionStore`; refused if it changes what is in the catalog."""
        new = edit(self._current)
        copy = self._copy
        for kind in ("topics", "stores"):
            now = getattr(new, kind)
            for name, each in getattr(copy, kind).items():
                if now.get(name) != each:
                    raise InvalidInput(f"{name} is in the catalog: start the node, and try again")
        if new != self._current or self.restored:
            omitted = {*copy.topics, *copy.stores} - self.restored
            topics = {name: each for name, each in new.topics.items() if name not in omitted}
            stores = {name: row for name, row in new.stores.items() if name not in omitted}
            write_definitions(self._fs, self._path, replace(new, topics=topics, stores=stores))
            self._current = new
        return new


def read_definitions(fs: FileSystem, path: str) -> Definitions | None:
    """The definitions in a file; None if there is no file."""
    text = read_definitions_text(fs, path)
    return None if text is None else Definitions.from_json(text, path)


def read_definitions_text(fs: FileSystem, path: str) -> bytes | None:
    """The JSON form of the definitions in a file; None if there is no file."""
    if not fs.exists(path):
        return None
    try:
        lines, _ = read_lines(fs, path)
    except FileNotFoundError:
        # It was renamed.
        return None
    except OSError as error:
        raise ReadFailed(path, 0, error) from error
    if len(lines) != 1:
        raise DamagedFile(path, 0, f"has {len(lines)} whole lines, not 1")
    return lines[0][1]


def read_definitions_in(fs: FileSystem, directory: str) -> Definitions | None:
    """The definitions of a data directory that another process may have open; None without any."""
    first = read_definitions(fs, f"{directory}/{DEFINITIONS}")
    copy = read_definitions(fs, f"{directory}/{COPY}")
    if first is None or copy is None:
        return first if copy is None else copy
    # The next start adds to the catalog what it lacks.
    return Definitions(
        {**first.tenants, **copy.tenants},
        {**first.namespaces, **copy.namespaces},
        {**first.topics, **copy.topics},
        {**first.stores, **copy.stores},
        first.logs or copy.logs,
    )


def write_definitions(fs: FileSystem, path: str, definitions: Definitions) -> None:
    """Replace a file; durable when it returns."""
    try:
        write_atomic(fs, path, encode_line(definitions.to_json()))
    except OSError as error:
        raise WriteFailed(path, error) from error
