"""Marks: files in a directory that record its creation or deletion durably.

    CREATING    The directory is being created and holds no acknowledged data. The mark is written
                before anything else and removed when the directory's definition is durable. With
                `"restores":true` the definition is older than the mark, and the directory is valid
                only after the mark is removed.
    DELETED     The directory is deleted. The mark has the name of the topic or store and the random
                id of each log deleted with it. It is written before the definition is removed, and
                is itself removed last. In a cluster it has the id of the object and its time of
                creation, too: it permits to remove exactly that object.

A mark is one checked line (`fs/checked_lines.py`), put in place by one rename:

    {"version":1,"name":"photos","logs":{"":"5f3a…"},"time_ms":…}

The keys of `logs` are sibling directories; "" is the marked directory. An id is empty where there
was no readable log.

Only a mark permits the removal of data. A directory with neither a definition nor a mark may be a
restored backup, or the definitions may be older than it: it is kept. A damaged mark, or one with
the id of another log or object, permits nothing. A mark of version 0.1 has no object: it permits
the removal of a directory that names one (`object_file.py`) only by the id of the log, and never
that of a definition in a catalog.

Used by creation and deletion of topics and blob stores, and by restore.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from lithify.errors import LithifyError, ReadFailed, WriteFailed
from lithify.fs import write_atomic
from lithify.fs.atomic import TEMPORARY_SUFFIX
from lithify.fs.checked_lines import encode_line, read_lines, read_value
from lithify.fs.remove_tree import remove_tree
from lithify.log.file_names import CREATING, DELETED, LOCK, OBJECT
from lithify.log.manifest import read_manifest
from lithify.log.object_file import ObjectIdentity

if TYPE_CHECKING:
    from lithify.fs import FileSystem

__all__ = [
    "Deletion",
    "begin_creation",
    "clear_mark",
    "is_creating",
    "is_empty",
    "is_restoring",
    "log_id_in",
    "read_deletion",
    "remove_created",
    "remove_deleted",
    "write_deletion",
]

_VERSION = 1
_NO_DATA = frozenset(
    {LOCK, OBJECT, *(name + TEMPORARY_SUFFIX for name in (CREATING, DELETED, OBJECT))}
)


@dataclass(frozen=True, slots=True)
class Deletion:
    """The contents of a mark `DELETED`."""

    name: str
    time_ms: int
    logs: dict[str, str] = field(default_factory=dict)
    of: ObjectIdentity | None = None
    """None: version 0.1 wrote it, or a node without a catalog."""

    def covers(self, place: str, log_id: str, found: ObjectIdentity | None) -> bool:
        """May a directory be removed that has this log and names this object, if any?

        A directory without a log is the rest of an interrupted removal, or it has no data. Of a
        newer object with that name it would name that object.
        """
        if place not in self.logs:
            return False
        is_same_log = log_id == self.logs[place]
        if self.of is None:
            return is_same_log and log_id != "" if found is not None else is_same_log or not log_id
        if found is not None:
            return found == self.of and (is_same_log or not log_id)
        # The file `OBJECT` of a sibling is removed last. Here the mark is.
        return is_same_log or not (place or log_id)

    @classmethod
    def of_row(cls, row: dict[str, Any]) -> Deletion:
        """Decode the value in the file."""
        of = None
        if "created_ms" in row:
            of = ObjectIdentity(row["id"], row["name"], row["created_ms"])
        return cls(row["name"], row["time_ms"], dict(row["logs"]), of)

    def to_json(self) -> str:
        """Encode for the file."""
        row: dict[str, Any] = {"name": self.name, "logs": self.logs, "time_ms": self.time_ms}
        if self.of is not None:
            row |= {"id": self.of.id, "created_ms": self.of.created_ms}
        return json.dumps({"version": _VERSION, **row}, separators=(",", ":"), sort_keys=True)


def log_id_in(fs: FileSystem, directory: str) -> str:
    """The id of the log in a directory, empty if there is no readable log."""
    try:
        return read_manifest(fs, directory).log_id.hex()
    except (OSError, LithifyError, ValueError, KeyError, TypeError):
        return ""


def write_deletion(fs: FileSystem, directory: str, deletion: Deletion) -> None:
    """Mark a directory as deleted; durable when it returns. Raises `WriteFailed`."""
    _write(fs, directory, DELETED, deletion.to_json())


def read_deletion(fs: FileSystem, directory: str) -> Deletion | None:
    """The mark of a directory; None if it is missing or damaged."""
    return read_value(fs, f"{directory}/{DELETED}", _VERSION, Deletion.of_row)


def begin_creation(fs: FileSystem, directory: str, *, restores: bool = False) -> None:
    """Create a directory and mark it as unfinished; durable when it returns.

    `restores`: its definition already exists, and does not say whether the directory is finished.
    """
    try:
        fs.mkdir(directory)
    except OSError as error:
        raise WriteFailed(directory, error) from error
    row = {"version": _VERSION, **({"restores": True} if restores else {})}
    _write(fs, directory, CREATING, json.dumps(row))


def is_creating(fs: FileSystem, directory: str) -> bool:
    """Is a directory marked as unfinished?"""
    return fs.exists(f"{directory}/{CREATING}")


def is_restoring(fs: FileSystem, directory: str) -> bool:
    """Is a directory marked as unfinished whose definition is older than the mark?

    Raises `ReadFailed` if the file system does not return the mark.
    """
    path = f"{directory}/{CREATING}"
    try:
        lines, _ = read_lines(fs, path)
        return bool(json.loads(lines[0][1]).get("restores"))
    except OSError as error:
        # Neither answer is safe: one would serve half of a topic, the other delete a whole one.
        raise ReadFailed(path, 0, error) from error
    except (LithifyError, ValueError, IndexError):
        return False


def is_empty(fs: FileSystem, directory: str) -> bool:
    """Does it contain no data? A crash in the first or last step leaves such a directory."""
    return fs.stat(directory).is_dir and _NO_DATA.issuperset(fs.list(directory))


def clear_mark(fs: FileSystem, directory: str, name: str) -> None:
    """Remove a mark, durably."""
    try:
        with suppress(FileNotFoundError):
            fs.remove(f"{directory}/{name}")
        if fs.exists(directory):
            fs.sync_dir(directory)
    except OSError as error:
        raise WriteFailed(f"{directory}/{name}", error) from error


def remove_deleted(fs: FileSystem, directory: str) -> None:
    """Remove a directory that is marked as deleted, its mark last."""
    remove_tree(fs, directory, DELETED)


def remove_created(fs: FileSystem, directory: str) -> None:
    """Remove a directory whose creation did not finish, its mark last."""
    remove_tree(fs, directory, CREATING)


def _write(fs: FileSystem, directory: str, name: str, text: str) -> None:
    path = f"{directory}/{name}"
    try:
        write_atomic(fs, path, encode_line(text))
    except OSError as error:
        raise WriteFailed(path, error) from error
