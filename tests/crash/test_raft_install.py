"""A snapshot in flight ends at every message, and at every operation of the receiver's disk.

The member that receives has entries that it has acknowledged and not applied yet. Wherever the
transfer ends, by a crash or by being given up:

1. The member's log is as it was, with that tail, until the snapshot takes its place as a whole.
2. Nothing of the transfer is left behind.
3. A later one completes: all values are there, the member takes part, and has it all after another
   crash.

The snapshot's last entry is dead, so the last live one is below its index.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

import pytest

from lithify.fs import MemoryFileSystem
from lithify.raft.kv import format as kv
from lithify.raft.snapshots.messages import (
    SnapshotAck,
    SnapshotEntries,
    SnapshotOffer,
    SnapshotPiece,
    TransferMessage,
)
from lithify.testing.faulty_fs import MUTATING, Fault, FaultyFileSystem, PowerCut
from tests.raft_members import GROUP, Member, Members

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lithify.raft.core import RaftMessage

LATE = 12
SNAPSHOTS = f"d/groups/{GROUP}/snapshots"


class Behind(Members):
    """Three members, of which n3 lacks what the others have in a snapshot only."""

    def __init__(self) -> None:
        super().__init__("n1", "n2", "n3")
        self.disk = MemoryFileSystem(clock=self.clock)
        self.fs = FaultyFileSystem(self.disk, [], record=True)
        self.all["n3"] = Member("n3", self.fs, self["n3"].settings)  # type: ignore[arg-type]
        self.elect("n1")
        for number in range(3):
            self.put("n1", b"early%d" % number, b"value %d" % number)
        # One more comes, but not that it is committed.
        self.lose = lambda m: m.sender == "n3" or (m.to == "n3" and not getattr(m, "entries", ()))
        self.put("n1", b"tail", b"acknowledged")
        self.lose = lambda message: "n3" in (message.sender, message.to)
        for number in range(LATE):
            self.put("n1", b"late%d" % number, b"value %d" % number)
        self.command("n1", kv.delete(b"early0"))
        self.snapshot("n1")
        self.lose = lambda _: False
        self.index: int = self["n1"].group.overview()["snapshot_index"]
        self.before = self.seen()
        assert self.before[0] > self["n3"].group.applied_index, "a tail that is not applied"

    def seen(self) -> tuple[int, int, list[object]]:
        """(last index, snapshot's index, all entries) of the member that receives."""
        log = self["n3"].storage.groups[GROUP].log
        indexes = [*log.state.live, *range(log.first_index, log.last_index + 1)]
        return log.last_index, log.snapshot_index, list(log.read(indexes))

    def cut_off_at(self, count: int) -> None:
        """Let messages of the transfer come, but none from one of them on."""
        left = count

        def lose(message: RaftMessage) -> bool:
            nonlocal left
            left -= isinstance(message, TransferMessage)
            return isinstance(message, TransferMessage) and left <= 0

        self.lose = lose
        self.tick()
        assert left <= 0

    def restart(self, disk: MemoryFileSystem) -> None:
        self.disk = disk
        self.all["n3"] = Member("n3", disk, self["n3"].settings)

    def check_as_it_was(self) -> None:
        assert self.seen() == self.before  # 1
        assert not self["n3"].storage.installs  # 2
        assert self["n3"].fs.list(SNAPSHOTS) == []

    @property
    def is_installed(self) -> bool:
        return self.seen()[1] >= self.index

    def check_as_it_was_or_installed(self) -> None:
        if not self.is_installed:
            self.check_as_it_was()

    def check_completes(self) -> None:
        """3."""
        self.lose = lambda _: False
        self.tick(150)
        for life in range(2):
            key, value = b"life%d" % life, b"another"
            self.put("n1", key, value)
            self.tick(2)
            assert self["n3"].group.applied_index == self["n1"].group.applied_index
            assert self.get("n3", key) == value
            assert self.get("n3", b"early0") is None
            assert self.get("n3", b"tail") == b"acknowledged"
            for number in range(LATE):
                assert self.get("n3", b"late%d" % number) == b"value %d" % number
            self.restart(self.disk.crash_clone(Random(life)))
            self.tick(3)


def every_message() -> Iterator[tuple[int, Behind]]:
    """For each message of a whole transfer, a world that is about to begin with it."""
    told = Behind()
    told.told.clear()
    told.tick()
    assert told.is_installed
    sent = [message for message in told.told if isinstance(message, TransferMessage)]
    kinds = {type(message) for message in sent}
    assert kinds == {SnapshotOffer, SnapshotEntries, SnapshotPiece, SnapshotAck}
    for count in range(1, len(sent) + 1):
        yield count, Behind()


def test_silence_from_any_message_on() -> None:
    for count, members in every_message():
        members.cut_off_at(count)
        members.tick(12)
        members.check_as_it_was_or_installed()
        members.check_completes()


def test_a_crash_at_any_message() -> None:
    for count, members in every_message():
        members.cut_off_at(count)
        members.restart(members.disk.crash_clone(Random(count)))
        members.check_as_it_was_or_installed()
        members.check_completes()


def test_another_leader_at_any_message() -> None:
    for count, members in every_message():
        members.cut_off_at(count)
        members["n1"].group.transfer("n2")
        members.tick(10)
        if not members.is_installed:
            # The other one has no snapshot, but all entries: the log resumes where it was.
            assert members.seen()[2][: len(members.before[2])] == members.before[2]
            assert not members["n3"].storage.installs
        members["n2"].group.transfer("n1")
        members.settle()
        members.check_completes()


def test_a_newer_snapshot_at_any_message() -> None:
    for count, members in every_message():
        members.cut_off_at(count)
        members.put("n1", b"newer", b"snapshot")
        members.snapshot("n1")
        members.tick(10)
        members.check_as_it_was_or_installed()
        members.check_completes()


@pytest.mark.parametrize(("kind", "times"), [("ENOSPC", 1), ("EIO", 3), ("SHORT", 1)])
def test_a_disk_that_refuses_any_operation_of_it(kind: str, times: int) -> None:
    """It is tried again, or the transfer is given up; the node does not end, and loses nothing."""
    waited = 0
    for nth in range(1, operations_of_a_transfer() + 1):
        members = Behind()
        members.fs.add(Fault("mutating", "*", nth, times, kind=kind))
        members.tick()
        assert members.is_installed or members.seen() == members.before
        if members["n3"].group._installing.is_active:
            waited += 1
            if waited % 2:
                members.restart(members.disk.crash_clone(Random(nth)))
                members.check_as_it_was_or_installed()
        members.check_completes()
    assert waited > 5, "the snapshot was just taking the place of the log"


def operations_of_a_transfer() -> int:
    members = Behind()
    before = len(members.fs.trace)
    members.tick()
    assert members.is_installed
    count = sum(line.split()[0] in MUTATING for line in members.fs.trace[before:])
    assert count > 20
    return count


def test_a_crash_at_every_operation_of_the_receiver() -> None:
    nth, kept, installed = 0, 0, 0
    while True:
        nth += 1
        members = Behind()
        members.fs.add(Fault("mutating", "*", nth, kind="CRASH"))
        try:
            members.tick()
        except PowerCut:
            members.restart(members.disk.crash_clone(Random(nth)))
            members.check_as_it_was_or_installed()
            installed += members.is_installed
            kept += not members.is_installed
            members.check_completes()
        else:
            break
    print(f"{kept} crashes left the old log, {installed} the snapshot")
    assert kept > 15
    assert installed > 5
