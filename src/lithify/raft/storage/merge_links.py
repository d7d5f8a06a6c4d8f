"""Replaces the sources of merges by their targets, so that any crash can be recovered from.

Sources 3, 4 and 5 were copied to `…3-…4-…5.compacting`, which is synced:

1. The hard link `…3.link` to the target is created (it cannot replace a name) and is renamed
   over `…3.segment`. The directory is synced. This step publishes the merge.
2. For 4 and 5: a symbolic link `…4.link` to `…3.segment` is renamed over `…4.segment`. The source's
   bytes are free now, and a reader with its name finds the merged file. The directory is synced.
3. `….compacting` is deleted, and the directory synced.

With a single source the target is renamed over it, and steps 2 and 3 are not needed. Several merges
do each step for all of them before the directory is synced: three syncs, however many merges.

`recover` decides for each `.compacting` file by the inode of the lowest source's name. A link count
of two would not do: a crash between link and rename leaves it too.

| the lowest name is | then |
|---|---|
| the same file | step 1 was done: steps 2 and 3 are repeated |
| another file, or there is one source | step 1 was not done: target and `.link` are deleted |

Then it deletes all `.link` names: a rename of one name of a file over another name of the same file
leaves both. `purge_links` deletes symbolic links after some time, and at once if their target is
missing. They name a file of the same directory, so the directory can be moved.

Every function may be interrupted anywhere and called again.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from lithify.raft.storage.file_names import (
    compacting_name,
    link_name,
    parse_compacting,
    parse_link,
    parse_segment,
    segment_name,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lithify.fs import FileSystem

__all__ = ["purge_links", "put_in_place", "recover"]


def put_in_place(fs: FileSystem, directory: str, merges: Sequence[Sequence[int]]) -> None:
    """Replace the sources of merges by their targets, which must be durable.

    A merge is the ascending numbers of its sources.
    """
    for numbers in merges:
        target = f"{directory}/{compacting_name(list(numbers))}"
        lowest = f"{directory}/{segment_name(numbers[0])}"
        if len(numbers) == 1:
            fs.rename(target, lowest)
            continue
        link = f"{directory}/{link_name(numbers[0])}"
        _remove(fs, link)
        fs.link(target, link)
        # A crash here leaves a target with two names, and every source under its own.
        fs.rename(link, lowest)
    fs.sync_dir(directory)
    several = [numbers for numbers in merges if len(numbers) > 1]
    if several:
        _finish(fs, directory, several)


def _finish(fs: FileSystem, directory: str, merges: Sequence[Sequence[int]]) -> None:
    """Steps 2 and 3."""
    for lowest, *others in merges:
        for number in others:
            link = f"{directory}/{link_name(number)}"
            _remove(fs, link)
            fs.symlink(segment_name(lowest), link)
            fs.rename(link, f"{directory}/{segment_name(number)}")
    # The links must be durable before the target's name goes: it lists the links to create.
    fs.sync_dir(directory)
    for numbers in merges:
        fs.remove(f"{directory}/{compacting_name(list(numbers))}")
    fs.sync_dir(directory)


def recover(fs: FileSystem, directory: str) -> list[str]:
    """Finish or roll back interrupted merges; returns the deleted names."""
    removed = []
    for name in fs.list(directory):
        numbers = parse_compacting(name)
        if numbers is None:
            continue
        target = fs.stat(f"{directory}/{name}")
        lowest = f"{directory}/{segment_name(numbers[0])}"
        place = fs.stat(lowest) if fs.exists(lowest) else None
        if place is not None and (place.device, place.inode) == (target.device, target.inode):
            # A killed process may have left the rename only in the operating system's cache.
            fs.sync_dir(directory)
            _finish(fs, directory, [numbers])
        else:
            fs.remove(f"{directory}/{name}")
        removed.append(name)
    for name in fs.list(directory):
        if parse_link(name) is not None:
            fs.remove(f"{directory}/{name}")
            removed.append(name)
    if removed:
        fs.sync_dir(directory)
    return removed


def purge_links(fs: FileSystem, directory: str, before_ms: int) -> list[str]:
    """Delete links created before a time, and links without a target; returns their names."""
    removed = []
    for name in fs.list(directory):
        if parse_segment(name) is None:
            continue
        path = f"{directory}/{name}"
        status = fs.stat(path)
        if not status.is_symlink:
            continue
        if status.mtime_ms < before_ms or not _has_target(fs, path):
            fs.remove(path)
            removed.append(name)
    if removed:
        fs.sync_dir(directory)
    return removed


def _has_target(fs: FileSystem, path: str) -> bool:
    try:
        fs.open_read(path).close()
    except FileNotFoundError:
        return False
    return True


def _remove(fs: FileSystem, path: str) -> None:
    with suppress(FileNotFoundError):
        fs.remove(path)
