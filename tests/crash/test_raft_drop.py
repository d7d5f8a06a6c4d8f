"""A crash at every operation of dropping a group, and of the start after it.

A node has two groups, one of which is dropped, or left, and then begun again under the same name.
Whatever is left, after a power cut or a kill, the next start finds:

1. the group with all that it had, if its end was not yet durable; else nothing of it, neither files
   nor entries nor state, not even as those of the group of the same name that came after it;
2. the other group as it was;
3. no unknown directory.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

import pytest

from lithify.fs import MemoryFileSystem, read_file, write_atomic
from lithify.live_set import LiveSet
from lithify.raft.core import Role, Status
from lithify.raft.core.configuration import Config
from lithify.raft.core.values import HardState, SnapshotMeta
from lithify.raft.entry import Entry
from lithify.raft.errors import UnknownGroup
from lithify.raft.node.identity import NodeIdentity
from lithify.raft.storage.file_names import new_key
from lithify.raft.storage.live_state import LiveState
from lithify.raft.storage.segment_file import SegmentLimits
from lithify.raft.storage.snapshots.snapshot_file import Head
from lithify.raft.storage.storage import RaftStorage, StorageSettings
from lithify.raft.storage.wal.wal import Rolled, Written
from lithify.testing.faulty_fs import Fault, FaultyFileSystem, PowerCut

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from lithify.fs import FileSystem

FIRST, SECOND = new_key("orders", 1), new_key("orders", 2)
OTHER = "default"
STATUS = Status("n1", Role.FOLLOWER, 7, "n2", "", 20, 3, 20, 20, 20, Config(), 0, {})


def rebuild(_: str, pieces: Iterable[bytes]) -> LiveSet:
    return LiveSet.from_bytes(b"".join(pieces))


class Node:
    """A node's directory, and what a node does with its groups; no consensus, no threads."""

    def __init__(self, fs: FileSystem) -> None:
        self.storage = RaftStorage(fs, "d", StorageSettings(segments=SegmentLimits(5, 10_000)))
        self.identity = NodeIdentity(fs, "d", "n1", "raft")
        self.identity.save()
        self.storage.open_groups(rebuild, self.identity.files, self.identity.is_gone)
        for key in self.identity.groups:
            files = self.identity.files_of(key)
            if files not in self.storage.groups:
                self.storage.create(files)

    def begin(self, key: str) -> None:
        self.identity.begin(key, ["n1"])
        self.storage.create(self.identity.files_of(key))

    def give_back(self, key: str, how: str) -> None:
        files = self.identity.files_of(key)
        if how == "drop":
            self.identity.drop(key, ["n2"])
        else:
            self.identity.leave(key, STATUS)
        self.storage.forget(files)
        self.storage.remove_files(files)

    def write(self, key: str, stop: int, term: int) -> None:
        files = self.identity.files_of(key)
        log = self.storage.groups[files].log
        first = log.last_index + 1
        log.append([Entry(n, term, key.encode(), 0) for n in range(first, stop)])
        self.storage.wal.save(files, HardState(term, "n2", first))
        self.flush()

    def flush(self, *, roll: bool = False) -> None:
        for event in self.storage.wal.roll() if roll else self.storage.wal.flush():
            if isinstance(event, Written):
                self.storage.groups[event.group].log.mark_durable(event)
            elif isinstance(event, Rolled):
                self.storage.settle(event, self.storage.flush(event))

    def snapshot(self, key: str, index: int) -> None:
        own = self.storage.groups[self.identity.files_of(key)]
        live = LiveSet.from_iterable([2, index])
        head = Head(SnapshotMeta(index, 1, Config(frozenset({"n1"}))))
        own.stored = own.snapshots.write(head, [live.to_bytes()], live, own.log.place())
        own.log.snapshot(LiveState(index, live), 1)

    def holds(self, key: str) -> tuple[list[int], int]:
        """(indexes, term) of a group's own entries and state."""
        own = self.storage.groups[self.identity.files_of(key)]
        log = own.log
        wanted = [*log.state.live, *range(log.snapshot_index + 1, log.last_index + 1)]
        entries = log.read(wanted) if wanted else []
        assert {entry.payload for entry in entries} <= {key.encode()}
        return wanted, own.hard_state.term


WHOLE = ([2, 12, *range(13, 21)], 3)
"""The first group: live indexes, a snapshot, entries in segments and in the write-ahead log."""
AS_IT_WAS = ([*range(1, 8)], 2)


def prepared() -> MemoryFileSystem:
    disk = MemoryFileSystem()
    node = Node(disk)
    node.begin(OTHER)
    node.begin(FIRST)
    node.write(FIRST, 13, 1)
    node.write(OTHER, 5, 1)
    node.flush(roll=True)
    node.snapshot(FIRST, 12)
    node.write(FIRST, 21, 3)
    node.write(OTHER, 8, 2)
    assert (node.holds(FIRST)[0], node.holds(OTHER)[0]) == (WHOLE[0], AS_IT_WAS[0])
    return disk.kill_clone()


def drop_and_begin_again(node: Node, how: str) -> None:
    node.give_back(FIRST, how)
    again = SECOND if how == "drop" else FIRST
    node.begin(again)
    node.write(again, 4, 9)
    node.flush(roll=True)


def check(disk: MemoryFileSystem, how: str) -> str:
    """What was found; raises if it must not be."""
    node = Node(disk)
    assert node.holds(OTHER) == AS_IT_WAS
    assert set(disk.list("d/groups")) == node.identity.files
    again = SECOND if how == "drop" else FIRST
    is_whole = FIRST in node.identity.groups and not node.identity.left
    if is_whole:
        assert node.holds(FIRST) == WHOLE
        assert SECOND not in node.identity.groups
        return "there"
    if how == "drop":
        assert FIRST in node.identity.dropped
    if again not in node.identity.groups:
        return "gone"
    found, term = node.holds(again)
    assert found in ([], [1, 2, 3])
    assert term in (0, 9)
    return "again"


def crashes(how: str) -> Iterator[tuple[MemoryFileSystem, str]]:
    """(disk, how it came to be) after a crash at each operation."""
    prepared_disk = prepared()
    for kind in ("CRASH", "CRASH_AFTER"):
        nth, done = 0, False
        while not done:
            nth += 1
            running = prepared_disk.kill_clone()
            fs = FaultyFileSystem(running, [])
            node = Node(fs)
            fs.add(Fault("mutating", "*", nth, kind=kind))
            try:
                drop_and_begin_again(node, how)
                done = True
            except PowerCut:
                pass
            for seed in range(3):
                yield running.crash_clone(Random(seed)), f"{kind} {nth}, seed {seed}"
            yield running.kill_clone(), f"{kind} {nth}, killed"


@pytest.mark.parametrize("how", ["drop", "leave"])
def test_a_crash_at_every_operation(how: str) -> None:
    found: list[str] = []
    for disk, where in crashes(how):
        try:
            found.append(check(disk, how))
        except BaseException as error:
            error.add_note(where)
            raise
    assert {*found} == {"there", "gone", "again"}
    assert len(found) > 100


@pytest.mark.parametrize("how", ["drop", "leave"])
def test_a_crash_at_every_operation_of_the_next_start(how: str) -> None:
    seen = set()
    for disk, where in crashes(how):
        state = str(sorted(disk.list("d/groups"))), str(sorted(disk.list("d/wal")))
        if state in seen:
            continue
        seen.add(state)
        nth = 1
        while True:
            starting = disk.kill_clone()
            try:
                Node(FaultyFileSystem(starting, [Fault("mutating", "*", nth, kind="CRASH")]))
                break
            except PowerCut:
                nth += 1
            try:
                check(starting.crash_clone(Random(nth)), how)
            except BaseException as error:
                error.add_note(f"{where}, then at operation {nth} of the start")
                raise
    assert len(seen) >= 3


def test_an_older_list_of_groups_removes_none() -> None:
    fs = MemoryFileSystem()
    node = Node(fs)
    node.begin(OTHER)
    older = read_file(fs, "d/NODE")
    node.begin(FIRST)
    node.write(FIRST, 21, 3)
    fs = fs.kill_clone()
    newer = read_file(fs, "d/NODE")
    write_atomic(fs, "d/NODE", older)
    with pytest.raises(UnknownGroup, match="orders"):
        Node(fs)
    write_atomic(fs, "d/NODE", newer)
    found = Node(fs.kill_clone())
    assert found.storage.groups[found.identity.files_of(FIRST)].log.last_index == 20
