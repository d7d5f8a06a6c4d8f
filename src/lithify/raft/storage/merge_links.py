"""How targets of merges take the place of their sources, so that any crash can be recovered from.

Sources 3, 4 and 5 were copied to `…3-…4-…5.compacting`, which is synced:

1. `…3.link` becomes a second name of the target (a hard link cannot replace a name) and is renamed
   over `…3.segment`. The directory is synced. This is the step that counts.
2. For 4 and 5: a symbolic link `…4.link` to `…3.segment`, renamed over `…4.segment`. The source's
   bytes are free now, and who still has its name finds the merged file. The directory is synced.
3. `….compacting` is removed, and the directory synced.

A single source is simply replaced: the target is renamed over it. Several merges at a time do each
step for all of them before the directory is synced: three times, however many there are.

What `recover` does with a `.compacting` it finds, by the inode of the lowest source's name, since
a link count of two may also mean that a crash came between link and rename:

| the lowest name is | then |
|---|---|
| the same file | step 1 was done: steps 2 and 3 are done again |
| another file, or there is one source | step 1 was not done: target and `.link` are removed |

All `.link` names that are left are removed: a rename of one name of a file over another name of the
same file leaves both. Symbolic links are removed some time later (`purge_links`), and at once if
they lead nowhere. They name a file of the same directory, so the directory can be moved.

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
    """Let the targets of merges, which are durable, take the place of their sources.

    A merge is the numbers of its sources, ascending.
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
        # A crash here leaves a target with two names and every source in its place.
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
    # Were a target's own name gone first, nobody would know which links are missing.
    fs.sync_dir(directory)
    for numbers in merges:
        fs.remove(f"{directory}/{compacting_name(list(numbers))}")
    fs.sync_dir(directory)


def recover(fs: FileSystem, directory: str) -> list[str]:
    """Finish or take back merges that were interrupted; the names that were removed."""
    removed = []
    for name in fs.list(directory):
        numbers = parse_compacting(name)
        if numbers is None:
            continue
        target = fs.stat(f"{directory}/{name}")
        lowest = f"{directory}/{segment_name(numbers[0])}"
        place = fs.stat(lowest) if fs.exists(lowest) else None
        if place is not None and (place.device, place.inode) == (target.device, target.inode):
            # The rename may be in the cache of a killed process's file system only.
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
    """Remove links that were made before a time, or that lead nowhere; their names."""
    removed = []
    for name in fs.list(directory):
        if parse_segment(name) is None:
            continue
        path = f"{directory}/{name}"
        found = fs.stat(path)
        if not found.is_symlink:
            continue
        if found.mtime_ms < before_ms or not _leads_somewhere(fs, path):
            fs.remove(path)
            removed.append(name)
    if removed:
        fs.sync_dir(directory)
    return removed


def _leads_somewhere(fs: FileSystem, path: str) -> bool:
    try:
        fs.open_read(path).close()
    except FileNotFoundError:
        return False
    return True


def _remove(fs: FileSystem, path: str) -> None:
    with suppress(FileNotFoundError):
        fs.remove(path)
