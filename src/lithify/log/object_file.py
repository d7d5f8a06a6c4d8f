"""The file `OBJECT`: of which object of the catalog a directory has the data.

    {"version":1,"id":17,"name":"persistent://public/default/orders","created_ms":…}

One checked line (`fs/checked_lines.py`). Ids are unique in a cluster only, so the name and the time
of creation belong to the identity: a catalog that was lost and begun again counts from 1.

It is written before the log. A directory whose file names another object than the definition of its
name is not served. A removal in the catalog deletes only a directory that names exactly what was
removed; the file is deleted last, so a crash leaves it.

A directory with data and without the file, or with a damaged one, is not served: it may have been
copied from elsewhere. It is claimed by an administrator who adopts it, and by an import of the
definitions of version 0.1, which has no such files.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lithify.errors import InvalidInput, UnclaimedDirectory, WriteFailed
from lithify.exit_codes import CONFLICT
from lithify.fs import read_file, write_atomic
from lithify.fs.checked_lines import encode_line, read_value
from lithify.log.file_names import OBJECT

if TYPE_CHECKING:
    from lithify.fs import FileSystem

__all__ = [
    "ObjectIdentity",
    "WrongObject",
    "check_object",
    "is_of",
    "read_object",
    "write_object",
]

_VERSION = 1


@dataclass(frozen=True, slots=True)
class ObjectIdentity:
    """What `OBJECT` names; the name is that of the whole topic, or of the store."""

    id: int
    name: str
    created_ms: int


class WrongObject(InvalidInput):
    """A directory has the data of another object than the one that is defined."""

    exit_code = CONFLICT

    def __init__(self, what: str, directory: str, wanted: int, found: int) -> None:
        super().__init__(
            f"{what} has the id {wanted}, but {directory} has the data of id {found}, which was "
            f"created before: move the directory away, or delete {what}, which leaves the "
            "directory in place, and adopt it then"
        )


def check_object(
    fs: FileSystem,
    directory: str,
    wanted: ObjectIdentity | None,
    what: str,
    adopt: str,
    *,
    is_new: bool,
) -> None:
    """Raise `WrongObject` or `UnclaimedDirectory` unless the directory is of this object.

    A new one, which has no data yet, is of it from then on. `adopt` is the command for another.
    Raises `OSError` if the file system refuses to read `OBJECT`.
    """
    if wanted is None:
        return
    found = read_object(fs, directory)
    if found is None and not is_new:
        path = f"{directory}/{OBJECT}"
        if fs.exists(path):
            read_file(fs, path)  # Raises what keeps the file from being read, if that is it.
        why = f"is not named by a readable file {OBJECT}"
        raise UnclaimedDirectory(what, directory, adopt, why)
    if found is None:
        write_object(fs, directory, wanted)
    elif found != wanted:
        raise WrongObject(what, directory, wanted.id, found.id)


def is_of(fs: FileSystem, directory: str, wanted: ObjectIdentity | None, *, is_new: bool) -> bool:
    """Would `check_object` accept the directory?"""
    found = read_object(fs, directory) if wanted is not None else None
    return found == wanted or (found is None and is_new)


def read_object(fs: FileSystem, directory: str) -> ObjectIdentity | None:
    """The object of a directory; None if it does not say."""
    return read_value(
        fs,
        f"{directory}/{OBJECT}",
        _VERSION,
        lambda row: ObjectIdentity(row["id"], row["name"], row["created_ms"]),
    )


def write_object(fs: FileSystem, directory: str, identity: ObjectIdentity) -> None:
    """Say of which object a directory is, which is created if necessary; durable."""
    row = {
        "version": _VERSION,
        "id": identity.id,
        "name": identity.name,
        "created_ms": identity.created_ms,
    }
    path = f"{directory}/{OBJECT}"
    try:
        fs.mkdir(directory)
        write_atomic(fs, path, encode_line(json.dumps(row, separators=(",", ":"))))
    except OSError as error:
        raise WriteFailed(path, error) from error
