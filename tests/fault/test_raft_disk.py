"""A member whose disk refuses to write: the group goes on without it, and with it afterwards."""

from __future__ import annotations

import pytest

from lithify.fs import Fault, FaultyFileSystem, MemoryFileSystem
from lithify.log.segment import read_footer
from lithify.raft.names import parse_segment
from lithify.raft.segment import SegmentLimits
from lithify.raft.storage import RaftStorage, StorageSettings
from lithify.raft.wal import Rolled
from tests.raft_members import Member, Members
from tests.unit.raft.stored import GROUP, entry, rebuild

GROUPS = (GROUP, "other")


def test_a_leader_that_is_refused_hands_over_and_follows() -> None:
    members = Members("n1", "n2", "n3")
    fs = FaultyFileSystem(MemoryFileSystem(clock=members.clock))
    members.all["n1"] = Member("n1", fs, members["n1"].settings)  # type: ignore[arg-type]
    members.elect("n1")
    fs.add(Fault("write", "*.wal", count=3, kind="ENOSPC"))
    members.put("n1", b"key", b"value")
    members.tick(2)
    leader = members["n1"].group.leader
    assert leader in ("n2", "n3")
    members.put(leader, b"key", b"of another")
    members.tick(2)
    assert members.get("n1", b"key") == b"of another"


@pytest.mark.parametrize("limits", [SegmentLimits(5, 10_000), SegmentLimits(50, 300)])
def test_segments_that_were_refused_anywhere_are_written_by_the_next_try(
    limits: SegmentLimits,
) -> None:
    """Of two groups: one may be through when the other is refused, and takes it in only later."""
    settings = StorageSettings(segments=limits)
    nth = refusals = 0
    while refusals == nth:
        nth += 1
        disk = MemoryFileSystem()
        fs = FaultyFileSystem(disk)
        storage = RaftStorage(fs, "d", settings)
        storage.open_groups(rebuild)
        logs = [storage.create(name).log for name in GROUPS]
        for first, stop in ((1, 8), (8, 20)):
            for log in logs:
                log.append([entry(index) for index in range(first, stop)])
            (rolled,) = [event for event in storage.wal.roll() if isinstance(event, Rolled)]
            if first > 1:
                fs.add(Fault("mutating", "*.segment", nth, kind="SHORT"))
            try:
                done = storage.flush(rolled)
            except OSError:
                refusals += 1
                done = storage.flush(rolled)
            storage.settle(rolled, done)
        for found in (storage, _reopened(disk, settings)):
            for name in GROUPS:
                _check(found, name)
    assert refusals > 10


def _check(storage: RaftStorage, name: str) -> None:
    """All entries are there, in segments that are what the group takes them for."""
    own = storage.groups[name]
    assert own.log.entries(1, 20, 2**40) == [entry(index) for index in range(1, 20)]
    names = [file for file in storage.fs.list(own.directory) if parse_segment(file)]
    assert names == [span.ref.name for span in own.log.segments.spans]
    for span in own.log.segments.spans:
        with storage.fs.open_read(f"{own.directory}/{span.ref.name}") as file:
            assert read_footer(file).last_position == span.ref.last_position


def _reopened(disk: MemoryFileSystem, settings: StorageSettings) -> RaftStorage:
    storage = RaftStorage(disk.kill_clone(), "d", settings)
    storage.open_groups(rebuild)
    return storage
