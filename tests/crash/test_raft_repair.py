"""A crash at every operation of a repair: the damaged segment or the repaired one, and again."""

from __future__ import annotations

import errno
from random import Random

from lithify.fs import read_file
from lithify.log.segments.segment_file import SEGMENT_HEADER_BYTES
from lithify.raft.storage.wal.wal import Rolled
from lithify.testing.faulty_fs import Fault, FaultyFileSystem, PowerCut
from tests.raft_members import GROUP, Member, Members

KEYS = 60


class Damaged(Members):
    """Three members; a segment of n2 has a bad byte."""

    def __init__(self) -> None:
        super().__init__("n1", "n2", "n3")
        self.elect("n1")
        for number in range(KEYS):
            self.put("n1", b"k%d" % number, self.value(number))
        for name in self.all:
            self.snapshot(name)
        own = self["n2"].storage.groups[GROUP]
        self.path = f"{own.directory}/{own.log.segments.spans[0].ref.name}"
        self.disk = self["n2"].fs.crash_clone(Random(1))
        data = bytearray(read_file(self.disk, self.path))
        data[SEGMENT_HEADER_BYTES + 150] ^= 4
        with self.disk.open_append(self.path) as file:
            file.truncate(0)
            file.write(bytes(data))
            file.fsync()
        self.fs = FaultyFileSystem(self.disk, [])
        self.restart()

    def value(self, number: int) -> bytes:
        return b"value %d" % number + b"." * 100

    def restart(self) -> None:
        member = Member("n2", self.fs, self["n2"].settings)  # type: ignore[arg-type]
        self.all["n2"] = member
        self.tick(3)

    def lose_power(self, seed: int) -> None:
        self.disk = self.disk.crash_clone(Random(seed))
        self.fs = FaultyFileSystem(self.disk, [])

    def repair(self) -> None:
        """Have it found and repaired."""
        log = self["n2"].storage.groups[GROUP].log
        log.segments.read_intact(log.segments.spans[0].ref, list(log.state.live))
        self.tick(5)

    def check(self) -> None:
        own = self["n2"].storage.groups[GROUP]
        assert not own.log.segments.damages.open
        for number in range(KEYS):
            assert self.get("n2", b"k%d" % number) == self.value(number)
        assert not own.log.segments.damages.open, "nothing is damaged"
        assert not [name for name in self.disk.list(own.directory) if name.endswith(".repair")]


def test_a_damaged_segment_is_repaired_with_entries_of_others() -> None:
    members = Damaged()
    members.repair()
    overview = members["n2"].group.overview()
    assert (overview["damage_found"], overview["damage_repaired"]) == (1, 1)
    members.check()
    members.lose_power(1)
    members.restart()
    members.check()


def test_a_crash_at_every_operation_of_a_repair() -> None:
    nth = crashes = 0
    while True:
        nth += 1
        members = Damaged()
        members.fs.add(Fault("mutating", "*", nth, kind="CRASH"))
        try:
            members.repair()
        except PowerCut:
            crashes += 1
            members.lose_power(nth)
            members.restart()
            members.repair()
            members.check()
        else:
            break
    print(f"{crashes} crashes")
    assert crashes >= 6


def test_entries_that_others_have_compacted_away_are_dead_here_too() -> None:
    members = Damaged()
    # n2 does not take part for a while in snapshots: the others let old values go.
    for number in range(KEYS):
        members.put("n1", b"k%d" % number, b"new" + members.value(number))
    for name in ("n1", "n3"):
        members.snapshot(name)
    log = members["n2"].storage.groups[GROUP].log
    log.segments.read_intact(log.segments.spans[0].ref, list(log.state.live))
    members.tick(200)
    assert not log.segments.damages.open
    for number in range(KEYS):
        assert members.get("n2", b"k%d" % number) == b"new" + members.value(number)


def test_repairs_of_a_repeatedly_damaged_segment_back_off() -> None:
    members = Damaged()
    own = members["n2"].storage.groups[GROUP]
    damages, name = own.log.segments.damages, own.log.segments.spans[0].ref.name
    for _ in range(2000):
        damages.found(name, OSError("the disk does not read it"))
        members.tick(1)
    assert 4 <= members["n2"].group.overview()["damage_repaired"] <= 8


def test_a_segment_that_has_grown_since_its_repair_was_begun_keeps_its_new_entries() -> None:
    members = Members("n1")
    members.elect("n1")
    member = members["n1"]
    storage, log = member.storage, member.storage.groups[GROUP].log
    for number in range(5):
        members.put("n1", b"k%d" % number, b"v")
    storage.wal.ask_roll("test")
    members.tick()
    (before,) = log.segments.spans
    for number in range(5, 10):
        members.put("n1", b"k%d" % number, b"v")
    storage.wal.ask_roll("test")
    (rolled,) = (event for event in storage.wal.flush() if isinstance(event, Rolled))
    flushed = storage.flush(rolled)
    log.segments.damages.found(before.ref.name, OSError(errno.EIO, "it cannot be opened"))
    member.group.work()
    storage.settle(rolled, flushed)
    members.tick(50)
    assert not log.segments.damages.open
    assert log.segments.spans[0].last == before.last + 5
    for number in range(10):
        assert members.get("n1", b"k%d" % number) == b"v"
