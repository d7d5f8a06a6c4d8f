"""Inodes and names of `MemoryFileSystem`, with their live and their durable state.

The *live* state is what the running process sees; the *durable* state is what is certainly on the
disk. Ordered lists of pending changes connect them:

1. A `FileInode` has live bytes, durable bytes, and the writes and truncations since its last
   `sync`. `sync` applies them to the durable bytes.
2. A `DirInode` has live names and durable names. The pending `NameChange`s of all directories are
   one list in the `Tree`, because a rename between two directories is one change of both.
   `Tree.sync` applies those of one directory and, for a rename into another directory, the earlier
   changes of that directory.
3. `Tree.lose_power` sets the live state to one that a power cut could leave: the durable state plus
   any part of the pending changes. Names are chosen first, then the bytes of the files that have a
   name.

Invariants: a rename happens completely or not at all; a name always refers to an inode; inodes keep
their number. Only `memory.py` uses this module, under its lock.
"""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import random

__all__ = ["DirInode", "FileInode", "Inode", "LinkInode", "NameChange", "Slot", "Tree", "failure"]

SYMLINKS_MAX = 40
"""Symbolic links followed in one path before it is treated as a loop, as on Linux."""

ODDS = (0.0, 0.5, 0.9, 1.0)
"""The probability that a pending change survives. One is drawn per power cut for names and one for
bytes: with a fixed probability of one half, long runs of survivors and "names but no bytes" would
be very rare.
"""


def failure(code: int, path: str) -> OSError:
    """The `OSError` that the operating system would raise."""
    return OSError(code, os.strerror(code), path)


@dataclass(frozen=True, slots=True)
class _Write:
    offset: int
    data: bytes

    def apply(self, content: bytearray) -> None:
        if not self.data:
            return
        if self.offset > len(content):
            content.extend(bytes(self.offset - len(content)))
        content[self.offset : self.offset + len(self.data)] = self.data


@dataclass(frozen=True, slots=True)
class _Truncate:
    size: int

    def apply(self, content: bytearray) -> None:
        del content[self.size :]
        content.extend(bytes(self.size - len(content)))


class FileInode:
    """The bytes of one file."""

    __slots__ = ("_pending", "content", "durable", "links", "mtime_ms", "number", "opens")

    def __init__(self, number: int, mtime_ms: int) -> None:
        self.number = number
        self.mtime_ms = mtime_ms
        self.links = 0
        self.opens = 0
        self.content = bytearray()
        self.durable = bytearray()
        self._pending: list[_Write | _Truncate] = []

    def write(self, offset: int, data: bytes) -> None:
        """Write `data` at `offset`."""
        self._change(_Write(offset, data))

    def truncate(self, size: int) -> None:
        """Set the size to `size` bytes, with zeros if it grows."""
        self._change(_Truncate(size))

    def _change(self, change: _Write | _Truncate) -> None:
        change.apply(self.content)
        self._pending.append(change)

    def sync(self) -> None:
        """Make the live bytes durable."""
        for change in self._pending:
            change.apply(self.durable)
        self._pending.clear()

    def lose_power(self, rng: random.Random, odds: float) -> None:
        """Keep the durable bytes and, of each later change, all, nothing or a torn write."""
        for change in self._pending:
            if rng.random() < odds:
                change.apply(self.durable)
            elif isinstance(change, _Write) and rng.random() < 0.5:
                torn = change.data[: rng.randrange(len(change.data) + 1)]
                _Write(change.offset, torn).apply(self.durable)
        self._pending.clear()
        self.content[:] = self.durable

    def __deepcopy__(self, memo: dict[int, object]) -> FileInode:
        # The pending changes are immutable and may be many: the copies share them.
        copy = FileInode(self.number, self.mtime_ms)
        memo[id(self)] = copy
        copy.links = self.links
        copy.content[:] = self.content
        copy.durable[:] = self.durable
        copy._pending[:] = self._pending
        return copy


class LinkInode:
    """A symbolic link."""

    __slots__ = ("links", "mtime_ms", "number", "target")

    def __init__(self, number: int, mtime_ms: int, target: str) -> None:
        self.number = number
        self.mtime_ms = mtime_ms
        self.links = 0
        self.target = target


class DirInode:
    """The names in one directory."""

    __slots__ = ("durable", "links", "mtime_ms", "names", "number")

    def __init__(self, number: int, mtime_ms: int) -> None:
        self.number = number
        self.mtime_ms = mtime_ms
        self.links = 0
        self.names: dict[str, Inode] = {}
        self.durable: dict[str, Inode] = {}


Inode = FileInode | LinkInode | DirInode


@dataclass(frozen=True, slots=True, eq=False)
class Slot:
    """The end of a path: a name in a directory, and its inode if it exists.

    The name is empty for the root and for a path that ends in `..`.
    """

    directory: DirInode
    name: str
    inode: Inode | None


@dataclass(frozen=True, slots=True, eq=False)
class NameChange:
    """A change of names: a removal (`gone`), a new name (`placed`), or a rename (both)."""

    inode: Inode
    gone: Slot | None = None
    placed: Slot | None = None

    def directories(self) -> set[int]:
        """The inode numbers of the directories that it affects."""
        return {slot.directory.number for slot in (self.gone, self.placed) if slot}

    def apply_live(self) -> Inode | None:
        """Apply it to the live state; returns the inode that lost a name, or None."""
        loser = None
        if self.gone:
            loser = self.gone.directory.names.pop(self.gone.name)
        if self.placed:
            loser = self.placed.directory.names.get(self.placed.name)
            self.placed.directory.names[self.placed.name] = self.inode
            self.inode.links += 0 if self.gone else 1
        if loser:
            loser.links -= 1
        return loser

    def apply_durable(self) -> None:
        """Apply it to the durable state.

        A rename also removes its source, or does nothing: if the change that created its source did
        not survive, moving the inode would leave it under two names.
        """
        if self.gone:
            source = self.gone.directory.durable
            if self.placed and source.get(self.gone.name) is not self.inode:
                return
            source.pop(self.gone.name, None)
        if self.placed:
            self.placed.directory.durable[self.placed.name] = self.inode


class Tree:
    """All names from the root down, and their changes that are not durable."""

    def __init__(self, root: DirInode) -> None:
        self.root = root
        self._pending: list[NameChange] = []

    def find(self, path: str, *, follow: bool) -> Slot:
        """Resolve `path`; `follow` also follows a symbolic link that is its last part."""
        trail = [self.root]
        todo = _parts(path)
        symlinks = 0
        while todo:
            name = todo.pop()
            if name == "..":
                del trail[max(1, len(trail) - 1) :]
                continue
            inode = trail[-1].names.get(name)
            if isinstance(inode, LinkInode) and (todo or follow):
                symlinks += 1
                if symlinks > SYMLINKS_MAX:
                    raise failure(errno.ELOOP, path)
                if inode.target.startswith("/"):
                    trail = [self.root]
                todo += _parts(inode.target)
            elif not todo:
                return Slot(trail[-1], name, inode)
            elif isinstance(inode, DirInode):
                trail.append(inode)
            else:
                raise failure(errno.ENOTDIR if inode else errno.ENOENT, path)
        return Slot(trail[-1], "", trail[-1])

    def change(self, change: NameChange) -> Inode | None:
        """Apply a change to the live state; returns the inode that lost a name, or None."""
        self._pending.append(change)
        return change.apply_live()

    def sync(self, directory: DirInode) -> None:
        """Make the names in one directory durable."""
        syncing = {directory.number}
        later: list[NameChange] = []
        due: list[NameChange] = []
        for change in reversed(self._pending):
            if syncing.isdisjoint(change.directories()):
                later.append(change)
            else:
                due.append(change)
                syncing |= change.directories()
        for change in reversed(due):
            change.apply_durable()
        self._pending = later[::-1]

    def inodes(self) -> list[Inode]:
        """All inodes that have a name now, by number."""
        found: dict[int, Inode] = {self.root.number: self.root}
        todo = [self.root]
        while todo:
            for inode in todo.pop().names.values():
                if inode.number not in found and isinstance(inode, DirInode):
                    todo.append(inode)
                found[inode.number] = inode
        return [found[number] for number in sorted(found)]

    def lose_power(self, rng: random.Random) -> None:
        """Set the live state to one that a power cut could leave; see the module."""
        names_odds = rng.choice(ODDS)
        bytes_odds = rng.choice(ODDS)
        for change in self._pending:
            if rng.random() < names_odds:
                change.apply_durable()
        self._pending.clear()
        todo = [self.root]
        while todo:
            directory = todo.pop()
            directory.names = dict(directory.durable)
            todo += [child for child in directory.names.values() if isinstance(child, DirInode)]
        survivors = self.inodes()
        for inode in survivors:
            inode.links = 0
            if isinstance(inode, FileInode):
                inode.lose_power(rng, bytes_odds)
        for inode in survivors:
            if isinstance(inode, DirInode):
                for child in inode.names.values():
                    child.links += 1


def _parts(path: str) -> list[str]:
    """The names in a path, last one first, to be popped."""
    return [name for name in reversed(path.split("/")) if name not in {"", "."}]
