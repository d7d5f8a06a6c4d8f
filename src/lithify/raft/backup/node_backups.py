"""Writes backups on a running node, and sends their files to clients.

    backup {"begin": true}                            the leader writes a backup of the group at its
                                                      applied index: {"backup": ID, "files": {…}}
    backup {"read": ID, "file": NAME, "offset": N}    up to `READ_BYTES` of a file, as they are
    backup {"end": ID}                                the node deletes the backup

While the worker writes a backup it neither compacts nor takes snapshots, because these are its jobs
too. So the state and its entries are of one index, whatever is appended meanwhile. A group has at
most one backup: the next replaces it. The directory `BACKUPS` is emptied when the node starts.

Called in the node's event loop; the threads of `raft/storage/disk_threads.py` access the files.
"""

from __future__ import annotations

import json
from functools import partial
from secrets import token_hex
from typing import TYPE_CHECKING, Any, Protocol

from lithify.errors import InvalidInput, LithifyError, WriteFailed
from lithify.fs.remove_tree import remove_tree
from lithify.raft.backup.group_backup import BACKUP, Backup, is_backup_file, write_backup
from lithify.raft.commands import CommandResult
from lithify.raft.core.errors import Dropped, DropReason

if TYPE_CHECKING:
    from collections.abc import Callable

    from lithify.fs import FileSystem
    from lithify.raft.backup.group_backup import Saved
    from lithify.raft.commands import Done
    from lithify.raft.storage.disk_threads import DiskThreads

__all__ = ["BACKUPS", "Backups", "SavedGroup", "fetch_backup"]

BACKUPS = "backups"
READ_BYTES = 2**20


class SavedGroup(Protocol):
    """What a backup uses of a group."""

    @property
    def leading_term(self) -> int:
        """The term in which this member leads; 0 if it does not."""

    @property
    def leader(self) -> str:
        """The known leader; empty if there is none."""

    def save(self) -> Saved:
        """The state and the live entries at the applied index."""


class Backups:
    """See the module."""

    def __init__(self, fs: FileSystem, directory: str, disk: DiskThreads) -> None:
        self._fs = fs
        self._directory = f"{directory}/{BACKUPS}"
        self._disk = disk
        self._backups: dict[str, Backup] = {}

    def ask(self, group: SavedGroup, given: dict[str, Any], done: Done) -> None:
        """Run one operation of a backup."""
        if given.get("begin"):
            self._begin(group, done)
        elif "read" in given:
            self._read(given, done)
        else:
            self._end(str(given.get("end")), done)

    def _begin(self, group: SavedGroup, done: Done) -> None:
        if not group.leading_term:
            reason = DropReason.NOT_LEADER if group.leader else DropReason.NO_LEADER
            raise Dropped(reason, group.leader)
        saved, name = group.save(), token_hex(8)
        replaced = [key for key, backup in self._backups.items() if backup.group == saved.group]
        for key in replaced:
            del self._backups[key]

        def write() -> Backup:
            for key in replaced:
                remove_tree(self._fs, f"{self._directory}/{key}")
            self._fs.mkdir(self._directory)
            try:
                return write_backup(self._fs, f"{self._directory}/{name}", saved)
            except OSError as error:
                raise WriteFailed(self._directory, error) from error

        def written(result: object) -> None:
            if not isinstance(result, Backup):
                self._disk.remove(partial(remove_tree, self._fs, f"{self._directory}/{name}.tmp"))
                done(_failure(result))
                return
            self._backups[name] = result
            files = {file: size for file, (size, _) in result.files.items()}
            reply = {"backup": name, "files": files, "index": result.index}
            done(CommandResult(result.index, json.dumps(reply).encode()))

        self._disk.run(write, written)

    def _read(self, given: dict[str, Any], done: Done) -> None:
        name, file, offset = str(given["read"]), str(given.get("file")), given.get("offset")
        backup = self._backups.get(name)
        if backup is None or file not in (BACKUP, *backup.files):
            raise InvalidInput(f"no backup {name} with a file {file} on this node")
        if not isinstance(offset, int) or not 0 <= offset < 2**62:
            raise InvalidInput(f"offset is {offset!r}, must be a number of bytes")
        path = f"{backup.directory}/{file}"

        def read() -> bytes:
            with self._fs.open_read(path) as opened:
                return opened.pread(READ_BYTES, offset)

        def reply(result: object) -> None:
            done(CommandResult(0, result) if isinstance(result, bytes) else _failure(result))

        self._disk.read(read, reply)

    def _end(self, name: str, done: Done) -> None:
        backup = self._backups.pop(name, None)
        if backup is not None:
            self._disk.remove(partial(remove_tree, self._fs, backup.directory))
        done(CommandResult(0, b"{}"))


def _failure(result: object) -> LithifyError:
    return result if isinstance(result, LithifyError) else InvalidInput(f"backup: {result}")


async def fetch_backup(
    ask: Callable[..., Any], read: Callable[..., Any], fs: FileSystem, directory: str
) -> int:
    """Copy a backup from a node to a new directory; returns the bytes received.

    `ask` returns the answer to an operation, `read` the bytes of a file. Nothing is verified.
    """
    reply = await ask(begin=True)
    name, total = reply["backup"], 0
    fs.mkdir(directory)
    files = [file for file in reply["files"] if is_backup_file(file)]
    for file in (*files, BACKUP):
        with fs.open_append(f"{directory}/{file}") as target:
            offset = 0
            while piece := await read(read=name, file=file, offset=offset):
                target.write(piece)
                offset += len(piece)
            target.fsync()
        total += offset
    fs.sync_dir(directory)
    await ask(end=name)
    return total
