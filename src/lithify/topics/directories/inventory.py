"""The inventory: which topics have a log, recorded outside of their directories.

    DIRECTORY/inventory

Without it, a topic whose directory was lost looks like one that was never used. A topic or
partition that is in the inventory and has no log has lost it, and is not served.

The file has checked lines (`fs/checked_lines.py`). The first has the version; each other line says
that a topic has a log, or that it was deleted:

    {"version":1}
    {"has":"persistent://public/default/orders"}
    {"deleted":"persistent://public/default/orders"}

The order of the steps, each durable before the next one:

1. Create: create the log, add it to the inventory, use it. A crash in between leaves a log that is
   not in the inventory, in which nothing is acknowledged; the next open of the topic adds it.
2. Delete: write the mark `DELETED`, remove the definition, remove it from the inventory, remove the
   files (`topic_directories.py`). A crash in between leaves the mark, and the next open resumes the
   deletion.

A change appends its lines and syncs the file, so its cost does not depend on the number of topics.
When more than half of the lines are obsolete, the file is replaced by one without them. It is also
replaced after a failed append, whose effect on the file is unknown.

If a data directory has no inventory, it is built from the directories found. A file that is
damaged, unreadable or of a newer version is set aside and rebuilt in the same way, together with
its intact lines whose topics are defined. `topic_directories.py` does both when it opens. Without
the permission to read the file, the start fails.

Any thread may call; a change waits for the disk.
"""

from __future__ import annotations

import json
import re
import threading
from collections import defaultdict
from contextlib import suppress
from typing import TYPE_CHECKING

from lithify.errors import DamagedFile, LithifyError, UnsupportedVersion, WriteFailed
from lithify.fs import read_file, write_atomic
from lithify.fs.checked_lines import encode_line, parse_lines
from lithify.log.side_files import check_is_unusable, set_aside
from lithify.topics.definitions.topic_names import TopicName

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from lithify.events import EventSink
    from lithify.fs import FileSystem

__all__ = ["INVENTORY", "Inventory", "read_inventory"]

INVENTORY = "inventory"
VERSION = 1
OBSOLETE_LINES_MAX = 1000
"""Obsolete lines that are always allowed, so that a node with few topics rarely replaces the
file."""

_PARTITION = re.compile(r"(.+)-partition-\d{1,6}")
_HEAD = encode_line(json.dumps({"version": VERSION}, separators=(",", ":")))


class Inventory:
    """The inventory of one data directory; one process changes it."""

    def __init__(self, fs: FileSystem, path: str, events: EventSink) -> None:
        """Read the file; a damaged one is set aside."""
        self._fs = fs
        self._path = path
        self._lock = threading.Lock()
        self._names: set[str] = set()
        self._partitions: dict[str, set[str]] = {}
        """Partitions by the name of the partitioned topic."""
        self._lines = 0
        self.found = fs.exists(path)
        """Is there a usable file?"""
        self.damaged = False
        """Was the file damaged, unreadable or of a newer version?"""
        self._is_torn = False
        """Must the file be replaced before the next append? Set after a failed write."""
        if not self.found:
            return
        try:
            data = read_file(fs, path)
            self._names, self._lines, end = _parse(data, path)
            self._is_torn = end < len(data)
        except (LithifyError, OSError) as error:
            check_is_unusable(error)
            set_aside(fs, path, str(error), events)
            self.found, self.damaged = False, True
            with suppress(OSError):
                self._names = _intact(read_file(fs, path), path)
        self._partitions = _by_whole(self._names)

    def __contains__(self, name: TopicName) -> bool:
        return str(name) in self._names

    def names(self) -> list[TopicName]:
        """All topics and partitions that have a log."""
        with self._lock:
            return [TopicName.parse(name) for name in sorted(self._names)]

    def names_of(self, name: TopicName) -> list[TopicName]:
        """The topic and its partitions that have logs; does not scan other topics."""
        text = str(name)
        with self._lock:
            names = {text} & self._names | self._partitions.get(text, set())
        return [TopicName.parse(each) for each in sorted(names)]

    def write(self, names: Collection[TopicName]) -> None:
        """Replace the file by one with exactly these names."""
        with self._lock:
            self._replace({str(name) for name in names})

    def add(self, names: Collection[TopicName]) -> None:
        """Add topics that have logs; durable when it returns."""
        with self._lock:
            new = [name for name in dict.fromkeys(map(str, names)) if name not in self._names]
            if new:
                self._change("has", new)

    def remove(self, names: Collection[TopicName]) -> None:
        """Remove topics; durable when it returns."""
        with self._lock:
            removed = [name for name in map(str, names) if name in self._names]
            # A failed append may have written its line.
            if removed or (self._is_torn and self.found):
                self._change("deleted", removed)

    def _change(self, what: str, names: list[str]) -> None:
        remaining = len(self._names) + (len(names) if what == "has" else -len(names))
        lines = self._lines + len(names)
        if not self.found or self._is_torn or lines > 2 * remaining + OBSOLETE_LINES_MAX:
            changed = self._names.union if what == "has" else self._names.difference
            self._replace(changed(names))
            return
        data = b"".join(encode_line(_row(what, name)) for name in names)
        self._is_torn = True
        try:
            with self._fs.open_append(self._path) as file:
                file.write(data)
                file.fdatasync()
        except OSError as error:
            raise WriteFailed(self._path, error) from error
        self._is_torn = False
        self._lines = lines
        partitions = _by_whole(names)
        if what == "has":
            self._names.update(names)
            for whole, parts in partitions.items():
                self._partitions.setdefault(whole, set()).update(parts)
        else:
            self._names.difference_update(names)
            for whole, parts in partitions.items():
                self._partitions[whole] -= parts
                if not self._partitions[whole]:
                    del self._partitions[whole]

    def _replace(self, names: set[str]) -> None:
        data = b"".join([_HEAD, *(encode_line(_row("has", name)) for name in sorted(names))])
        # Stays set if the rename succeeds and its sync fails.
        self._is_torn = True
        try:
            write_atomic(self._fs, self._path, data)
        except OSError as error:
            raise WriteFailed(self._path, error) from error
        self.found, self.damaged, self._is_torn = True, False, False
        self._names, self._lines = names, len(names)
        self._partitions = _by_whole(names)


def read_inventory(fs: FileSystem, path: str) -> set[str]:
    """The names in the inventory of a data directory that another process may have open.

    An unreadable file counts as empty, because only its owner may replace it.
    """
    if not fs.exists(path):
        return set()
    try:
        return _parse(read_file(fs, path), path)[0]
    except (LithifyError, OSError):
        return set()


def _by_whole(names: Iterable[str]) -> dict[str, set[str]]:
    """The partitions among the names, by the name of the partitioned topic."""
    partitions = defaultdict(set)
    for name in names:
        match = _PARTITION.fullmatch(name)
        if match:
            partitions[match[1]].add(name)
    return dict(partitions)


def _row(what: str, name: str) -> str:
    return json.dumps({what: name}, separators=(",", ":"))


def _parse(data: bytes, path: str) -> tuple[set[str], int, int]:
    """(names, number of lines after the head, end of the last complete line)."""
    lines, end = parse_lines(data, path)
    if not lines:
        raise DamagedFile(path, 0, "has no lines")
    (_, head), *rows = lines
    version = json.loads(head).get("version", 0)
    if version != VERSION:
        raise UnsupportedVersion(path, version, VERSION)
    names: set[str] = set()
    for _, text in rows:
        _apply(text, names)
    return names, len(rows), end


def _intact(data: bytes, path: str) -> set[str]:
    """The names of a damaged file, from its intact lines."""
    names: set[str] = set()
    for line in data.splitlines(keepends=True):
        with suppress(DamagedFile):
            for _, text in parse_lines(line, path)[0]:
                _apply(text, names)
    return names


def _apply(text: bytes, names: set[str]) -> None:
    row = json.loads(text.decode())
    if "has" in row:
        names.add(row["has"])
    names.discard(row.get("deleted", ""))
