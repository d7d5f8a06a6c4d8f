"""The live entries of a snapshot that came from another member are there after every crash."""

from __future__ import annotations

import pytest

from lithify.fs import MemoryFileSystem
from lithify.live_set import LiveSet
from lithify.raft.core.configuration import Config
from lithify.raft.core.values import SnapshotMeta
from lithify.raft.storage.snapshots.snapshot_file import Head
from lithify.raft.storage.wal.wal import Written
from lithify.testing.faulty_fs import Fault, FaultyFileSystem, PowerCut
from tests.unit.raft.stored import GROUP, Member, entry

LIVE = [2, 12, 17]


def install(member: Member) -> None:
    """A snapshot at 20 comes to a member that has applied 5."""
    head = Head(SnapshotMeta(20, 2, Config(frozenset({"n1"}))))
    storage = member.storage
    coming = storage.begin_install(GROUP, head, applied=5)
    coming.add([entry(12, 2), entry(17, 2)])
    for event in storage.wal.flush():
        assert isinstance(event, Written)
        coming.mark_durable(event)
    needed = LiveSet.from_iterable(LIVE)
    coming.piece(needed.to_bytes())
    member.roll()
    job = storage.install_job(coming, needed)
    storage.installed(coming, needed, job())


def test_a_snapshot_takes_the_place_of_the_log() -> None:
    member = Member(MemoryFileSystem()).fill(9)
    install(member)
    assert member.log.read(LIVE) == [entry(2), entry(12, 2), entry(17, 2)]
    assert (member.log.last_index, member.log.last_term) == (20, 2)
    again = Member(member.disk.kill_clone())
    assert again.log.read(LIVE) == member.log.read(LIVE)


def test_its_entries_are_found_in_the_write_ahead_log_also_after_later_snapshots() -> None:
    """They have no segment yet: the crash comes when one is begun, and nothing is rolled since."""
    disk = MemoryFileSystem()
    fs = FaultyFileSystem(disk, [])
    member = Member(fs).fill(9)
    fs.add(Fault("open_append", "*0004.segment", kind="CRASH"))
    with pytest.raises(PowerCut):
        install(member)
    found = Member(disk.kill_clone())
    assert found.log.read(LIVE) == [entry(2), entry(12, 2), entry(17, 2)]
    # What is between the last live entry and the snapshot's index is not missing.
    found.write(23).snapshot(21, [2, 17])
    again = Member(found.disk.kill_clone())
    assert again.log.read([2, 17]) == [entry(2), entry(17, 2)]
    again.roll().compact()
    assert again.log.read([2, 17]) == [entry(2), entry(17, 2)]
