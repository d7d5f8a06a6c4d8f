"""Creates a new data directory from saved groups: `raft restore` and `raft recover`.

    restore(fs, "data/n1", "n1", "raft", [read_backup(fs, backup)], draw)

1. Everything is written to `DIRECTORY.tmp`, by the steps that install a snapshot of another member
   (`raft/storage/snapshots/install.py`): state, live indexes and live entries.
2. The directory's node becomes the only member of each group. Each group gets a new key, so it is a
   different group for all former members: they and it ignore each other's messages.
3. The directory is opened as a start would open it, and every live entry is read.
4. The directory is renamed, which is the commit point. A crash before it leaves a temporary
   directory, which the next attempt deletes.

`load_stopped` returns the groups of a stopped node's directory after everything in its log,
including entries that were not known to be committed there, because no member is left to commit
them. The directory is opened as a start would open it, and its log is not changed.

Called by the command line, with no other process at the directories.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lithify.errors import DamagedFile, InvalidInput, MissingFile
from lithify.fs.remove_tree import remove_tree
from lithify.raft.backup.group_backup import Saved, check_new, live_entries
from lithify.raft.core.configuration import Config
from lithify.raft.core.values import HardState, SnapshotMeta
from lithify.raft.errors import NoSuchDirectory
from lithify.raft.group.apply_committed import apply_entries, apply_many_of
from lithify.raft.node.cluster_id import new_cluster_id
from lithify.raft.node.identity import NodeIdentity, stored_owner
from lithify.raft.snapshots.taking import ApplyPosition
from lithify.raft.storage.file_names import NODE, group_of, new_key
from lithify.raft.storage.log_view import StoredLog
from lithify.raft.storage.snapshots.snapshot_file import Head
from lithify.raft.storage.storage import RaftStorage
from lithify.raft.storage.wal.wal import Rolled, Written

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from lithify.fs import FileSystem
    from lithify.live_set import LiveSet
    from lithify.raft.machine import Machine
    from lithify.raft.storage.snapshots.install import Install
    from lithify.raft.storage.storage import GroupStorage

    MachineOf = Callable[[str], Machine[Any]]
    """Creates the machine of the group with a name."""

__all__ = ["Survivor", "load_stopped", "restore"]

APPLY_BYTES = 4 * 2**20


@dataclass(frozen=True, slots=True)
class Survivor:
    """A group in a stopped node's directory."""

    saved: Saved
    node: str
    cluster: str
    term: int
    """The highest term that the node knew."""
    commit: int
    """The last index that the node knew to be committed."""
    snapshot_index: int

    @property
    def gone(self) -> list[str]:
        """The other members."""
        return sorted(self.saved.head.meta.config.members - {self.node})


def restore(
    fs: FileSystem,
    directory: str,
    node: str,
    cluster: str,
    groups: Sequence[Saved],
    machine_of: MachineOf,
    draw: Callable[[int], int],
) -> None:
    """Create a directory for a node that is the only member of these groups."""
    check_new(fs, directory)
    temporary = f"{directory}.tmp"
    remove_tree(fs, temporary)
    storage = RaftStorage(fs, temporary)
    try:
        identity = NodeIdentity(fs, temporary, node, cluster)
        for saved in groups:
            key = new_key(saved.group, draw(2**64))
            # Members that are added find the identity of the first one in the snapshot.
            own = frozenset({(node, identity.recognition.own)})
            _write(storage, key, saved, Config(frozenset({node}), identities=own))
            identity.groups[key] = [node]
        # So that nodes of the old cluster are not accepted as members of this one.
        identity.recognition.cluster_id = new_cluster_id()
        identity.save()
    finally:
        storage.close()
    _check(fs, temporary, groups, machine_of)
    fs.rename(temporary, directory)
    fs.sync_dir(directory.rpartition("/")[0] or ".")


def _write(storage: RaftStorage, key: str, saved: Saved, alone: Config) -> None:
    meta = saved.head.meta
    head = Head(SnapshotMeta(meta.index, meta.term, alone), saved.head.machine_version)
    storage.create(key)
    install = storage.begin_install(key, head, 0)
    for entries in saved.entries:
        install.add(entries)
        _flush(storage, install)
    for piece in saved.pieces:
        install.piece(piece)
    # Written out, so that it can be read back and its live entries checked.
    for _ in install.pieces():
        pass
    install.check(saved.live)
    _flush(storage, install, roll=True)
    storage.installed(install, saved.live, storage.install_job(install, saved.live)())
    storage.wal.save(key, HardState(meta.term, "", meta.index))
    _flush(storage, None)


def _flush(storage: RaftStorage, install: Install | None, *, roll: bool = False) -> None:
    for event in storage.wal.roll() if roll else storage.wal.flush():
        if isinstance(event, Rolled):
            storage.settle(event, storage.flush(event))
        elif isinstance(event, Written) and install is not None:
            install.mark_durable(event)


def _check(fs: FileSystem, directory: str, groups: Sequence[Saved], machine_of: MachineOf) -> None:
    """Open the new directory as a start would, and read it."""
    with _opened(fs, directory, machine_of) as (storage, _):
        found = {group_of(name): own for name, own in storage.groups.items()}
        for saved in groups:
            own = found[saved.group]
            live = own.log.state.live
            read = sum(len(entries) for entries in live_entries(own.log, live))
            if own.log.last_index != saved.head.meta.index or read != len(saved.live):
                what = f"group {saved.group} has {read} entries up to {own.log.last_index}"
                raise DamagedFile(directory, 0, f"{what}, not {len(saved.live)}")


@contextmanager
def _opened(
    fs: FileSystem, directory: str, machine_of: MachineOf
) -> Iterator[tuple[RaftStorage, NodeIdentity]]:
    def live_of(key: str, pieces: Iterable[bytes]) -> LiveSet:
        machine = machine_of(group_of(key))
        return machine.live_indexes(machine.load(pieces))

    node, cluster = _owner(fs, directory)
    storage = RaftStorage(fs, directory)
    try:
        identity = NodeIdentity(fs, directory, node, cluster)
        storage.open_groups(live_of, identity.files, is_listed=identity.is_listed)
        yield storage, identity
    finally:
        storage.close()


def _owner(fs: FileSystem, directory: str) -> tuple[str, str]:
    if not fs.exists(directory):
        raise NoSuchDirectory(directory)
    owner = stored_owner(fs, directory)
    if owner is None:
        raise MissingFile(f"{directory}/{NODE}", directory)
    return owner


@contextmanager
def load_stopped(
    fs: FileSystem, directory: str, machine_of: MachineOf, wanted: str = ""
) -> Iterator[list[Survivor]]:
    """The groups of a stopped node, or the wanted one; the directory is open meanwhile."""
    with _opened(fs, directory, machine_of) as (storage, identity):
        found = []
        for key, first in sorted(identity.groups.items()):
            own = storage.groups.get(identity.files_of(key))
            if own is None or wanted not in ("", group_of(key)):
                continue
            found.append(
                _load(own, key, Config(frozenset(first)), identity, machine_of(group_of(key)))
            )
        if not found:
            raise InvalidInput(f"{directory} has no group {wanted or 'at all'}")
        yield found


def _load(
    own: GroupStorage, key: str, first: Config, identity: NodeIdentity, machine: Machine[Any]
) -> Survivor:
    meta = StoredLog(own, first).snapshot()
    state = machine.init() if own.stored is None else machine.load(own.snapshots.pieces(own.stored))
    at = ApplyPosition(meta.index, meta.term, meta.config, state)
    apply_many, log = apply_many_of(machine), own.log
    while at.index < log.last_index:
        entries = log.entries(at.index + 1, log.last_index + 1, APPLY_BYTES)
        for _ in apply_entries(apply_many, at, entries):
            if at.ended:
                raise InvalidInput(f"group {group_of(key)} was dropped; there is nothing to save")
    head = Head(SnapshotMeta(at.index, at.term, at.config), machine.version)
    live = machine.live_indexes(at.state)
    entries_of = live_entries(log, live)
    saved = Saved(group_of(key), head, live, machine.save(at.state), entries_of)
    commit = max(own.hard_state.commit, meta.index)
    term = max(own.hard_state.term, at.term)
    return Survivor(saved, identity.node, identity.cluster, term, commit, meta.index)
