"""A crash at every operation of `raft recover`, and of a backup: all or nothing, and again.

The survivor's directory is the same before and after: it opens, with everything in it.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from lithify.errors import Corrupt, InvalidInput, ReadFailed
from lithify.raft.backup.group_backup import read_backup, verify_backup, write_backup
from lithify.raft.commands import CommandResult
from lithify.raft.core.configuration import Config
from lithify.raft.group.group import Group
from lithify.raft.group.settings import GroupSettings
from lithify.raft.kv import format as kv
from lithify.raft.kv.machine import KvMachine, kv_machine
from lithify.raft.node.identity import NodeIdentity
from lithify.raft.restore import load_stopped, restore
from lithify.raft.storage.storage import RaftStorage
from lithify.testing.faulty_fs import Fault, FaultyFileSystem, PowerCut
from tests.raft_members import GROUP, Members

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lithify.fs import FileSystem, MemoryFileSystem
    from lithify.live_set import LiveSet

KEYS = 12


def survivor() -> MemoryFileSystem:
    """The disk of one of three members: a snapshot, and entries above it."""
    members = Members("n1", "n2", "n3")
    members.elect("n1")
    for number in range(KEYS):
        members.put("n1", b"k%d" % number, b"old")
    members.snapshot("n1")
    for number in range(0, KEYS, 2):
        members.put("n1", b"k%d" % number, b"value %d" % number + b"." * 200)
    # Not acknowledged by another member.
    members.lose = lambda _: True
    members["n1"].group.propose(kv.put(b"tail", b"uncommitted"), lambda _: None)
    members.settle()
    fs = members["n1"].fs
    members["n1"].storage.close()
    identity = NodeIdentity(fs, "d", "n1", "raft")
    identity.begin(GROUP, ["n1", "n2", "n3"])
    return fs


def recover(fs: FileSystem, to: str = "new") -> None:
    with load_stopped(fs, "d", kv_machine) as found:
        saved = [each.saved for each in found]
        restore(fs, to, "n1", "raft", saved, kv_machine, Random(7).randrange)


def values_of(fs: FileSystem, directory: str) -> dict[bytes, bytes]:
    """What a start from a directory has, led by its only member."""
    identity = NodeIdentity(fs, directory, "n1", "raft")
    ((key, members),) = identity.groups.items()
    assert members == ["n1"]
    storage = RaftStorage(fs, directory)

    def live_in(_: str, pieces: Iterable[bytes]) -> LiveSet:
        machine = KvMachine()
        return machine.live_indexes(machine.load(pieces))

    storage.open_groups(live_in, identity.files)
    settings = GroupSettings(Config(frozenset(members)))
    group: Group[Any] = Group(storage, key, "n1", KvMachine(), settings, Random(1).randrange)
    group.campaign()
    answers: list[Any] = []
    for _ in range(20):
        out = group.work()
        for event in storage.wal.flush():
            group.wal_event(event)
        for job in out.jobs + out.reads:
            group.job_done(job, job())
        if group.leading_term and not any(isinstance(a, CommandResult) for a in answers):
            group.read(kv.scan(b"", 100), answers.append)
    rows = kv.parse_rows(next(a for a in answers if isinstance(a, CommandResult)).reply)
    storage.close()
    return {row.key: row.value for row in rows if row.key}


def expected() -> dict[bytes, bytes]:
    rows = {b"k%d" % n: b"old" for n in range(KEYS)}
    rows |= {b"k%d" % n: b"value %d" % n + b"." * 200 for n in range(0, KEYS, 2)}
    return rows | {b"tail": b"uncommitted"}


def test_a_survivor_recovers_alone_with_all_its_entries() -> None:
    fs = survivor()
    with load_stopped(fs, "d", kv_machine) as (found,):
        assert found.gone == ["n2", "n3"]
        assert found.commit < found.saved.head.meta.index
    recover(fs)
    assert values_of(fs, "new") == expected()
    with pytest.raises(InvalidInput, match="exists already"):
        recover(fs)


def test_a_crash_anywhere_leaves_all_or_nothing() -> None:
    before = survivor()
    nth = crashes = 0
    while True:
        nth += 1
        # What a power cut leaves of a disk on which nothing is in progress.
        disk = before.crash_clone(Random(nth))
        try:
            recover(FaultyFileSystem(disk, [Fault("mutating", "*", nth, kind="CRASH")]))
        except PowerCut:
            crashes += 1
            left = disk.crash_clone(Random(nth))
            if not left.exists("new"):
                recover(left)
            assert values_of(left, "new") == expected(), nth
            # The survivor has lost nothing.
            with load_stopped(left, "d", kv_machine) as (found,):
                assert len(found.saved.live) == len(expected())
        else:
            break
    print(f"{crashes} crashes")
    assert crashes > 30


def test_every_flipped_byte_of_a_backup_is_found() -> None:
    fs = survivor()
    with load_stopped(fs, "d", kv_machine) as (found,):
        made = write_backup(fs, "b", found.saved)
    assert verify_backup(fs, "b") == made
    restore(fs, "new", "n1", "raft", [read_backup(fs, made)], kv_machine, Random(7).randrange)
    assert values_of(fs, "new") == expected()
    for name in ("BACKUP", *made.files):
        size = fs.stat(f"b/{name}").size
        for at in range(0, size, max(1, size // 40)):
            with fs.open_append(f"b/{name}") as file:
                good = file.pread(size, 0)
                bad = bytearray(good)
                bad[at] ^= 0x10
                file.truncate(0)
                file.write(bytes(bad))
            with pytest.raises(Corrupt):
                verify_backup(fs, "b")
            with fs.open_append(f"b/{name}") as file:
                file.truncate(0)
                file.write(good)
    verify_backup(fs, "b")


def test_a_backup_that_cannot_be_read_is_named() -> None:
    disk = survivor()
    with load_stopped(disk, "d", kv_machine) as (found,):
        write_backup(disk, "b", found.saved)
    counted = FaultyFileSystem(disk)
    verify_backup(counted, "b")
    assert counted.operations > 10
    for nth in range(1, counted.operations + 1):
        with pytest.raises(ReadFailed) as raised:
            verify_backup(FaultyFileSystem(disk, [Fault("*", nth=nth)]), "b")
        assert raised.value.path.startswith("b")


def test_former_members_are_refused_by_the_recovered_group() -> None:
    fs = survivor()
    recover(fs)
    (key,) = NodeIdentity(fs, "new", "n1", "raft").groups
    assert key != GROUP
    assert key.startswith(f"{GROUP}@")
