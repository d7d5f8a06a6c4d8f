"""When snapshots are taken."""

from __future__ import annotations

from lithify.fs import read_file
from lithify.raft.storage.live_state import LiveState
from lithify.raft.storage.wal.recovery import wal_files
from lithify.raft.storage.wal.wal import Rolled
from tests.raft_members import Member, Members


def test_no_snapshot_needs_an_entry_of_a_batch_that_nothing_proves() -> None:
    members = Members("n1")
    members.elect("n1")
    members.put("n1", b"key", b"value")
    members.snapshot("n1")
    before = members["n1"]
    stored = before.storage.groups["g"].stored
    assert stored is not None
    assert stored.index == before.group.applied_index
    disk = before.fs.kill_clone()
    _, path = wal_files(disk, "d/wal")[-1]
    disk.flip(path, len(read_file(disk, path)) - 10)
    after = Member("n1", disk, before.settings)
    assert after.storage.groups["g"].log.snapshot_index == stored.index


def test_a_snapshot_waits_for_no_proof_of_entries_that_are_in_segments() -> None:
    members = Members("n1")
    group = members.elect("n1")
    members.put("n1", b"key", b"value")
    storage = members["n1"].storage
    for event in storage.wal.roll():
        assert isinstance(event, Rolled)
        storage.settle(event, storage.flush(event))
    group.take_snapshot()
    assert [job.what for job in group.work().jobs] == [f"snapshot {group.applied_index}"]


def test_a_held_snapshot_is_dropped_when_a_newer_one_was_installed() -> None:
    members = Members("n1")
    group = members.elect("n1")
    members.put("n1", b"key", b"value")
    group.take_snapshot()
    for _ in range(3):
        assert not group.work().jobs, "nothing is proved yet"
    members["n1"].storage.states["g"] = LiveState(group.applied_index + 1)
    assert not members["n1"].proved_jobs()
