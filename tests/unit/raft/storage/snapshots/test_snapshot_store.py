"""A snapshot is never without the live indexes it needs, however it came about."""

from __future__ import annotations

from random import Random

import pytest

from lithify.errors import DamagedFile
from lithify.fs import MemoryFileSystem
from lithify.live_set import LiveSet
from lithify.raft.core.configuration import Config
from lithify.raft.core.values import SnapshotMeta
from lithify.raft.storage.snapshots.snapshot_file import Head
from lithify.raft.storage.snapshots.snapshot_store import SnapshotPlace, Snapshots
from lithify.testing.faulty_fs import Fault, FaultyFileSystem, PowerCut
from tests.unit.raft.stored import DIRECTORY, GROUP, Member, rebuild

LIVE = [2, 9, 12, 21]
NEEDED = LiveSet.from_iterable(LIVE)


def head(index: int) -> Head:
    return Head(SnapshotMeta(index, 1, Config(frozenset({"n1"}))))


def live_file(member: Member) -> str:
    assert member.own.stored is not None
    return f"{member.own.stored.directory}/live"


@pytest.mark.parametrize("how", ["missing", "damaged", "of another snapshot"])
def test_unreadable_live_indexes_are_rebuilt_from_the_state(how: str) -> None:
    """[H2] Taken as none, everything that a snapshot needs would be dropped."""
    fs = MemoryFileSystem()
    member = Member(fs).fill(26).snapshot(22, LIVE)
    path = live_file(member)
    member.storage.close()
    if how == "missing":
        fs.remove(path)
    elif how == "damaged":
        fs.flip(path, 40)
    else:
        with fs.open_append(path) as file:
            file.truncate(0)
            file.write(LiveSet.from_iterable([23]).to_bytes())
    again = Member(fs)
    assert list(again.log.state.live) == LIVE
    again.compact()
    again.check()
    assert fs.exists(path), "and are written again"


@pytest.mark.parametrize("live", [[], LIVE])
def test_live_indexes_are_always_stored_with_a_snapshot(live: list[int]) -> None:
    """[H3] Also when there are none: no file would be the same as a lost one."""
    fs = MemoryFileSystem()
    member = Member(fs).fill(26).snapshot(22, live)
    assert LiveSet.from_bytes(fs.open_read(live_file(member)).pread(10_000, 0)) == (
        LiveSet.from_iterable(live)
    )


@pytest.mark.parametrize("kind", ["CRASH", "CRASH_AFTER"])
def test_no_crash_leaves_a_snapshot_without_them(kind: str) -> None:
    """[H2] [H3] The live indexes are durable before the snapshot has its name."""
    for nth in range(1, 100):
        disk = MemoryFileSystem()
        fs = FaultyFileSystem(disk, [Fault("mutating", "*", nth, kind=kind)])
        done = False
        try:
            Snapshots(fs, "g").write(head(22), [b"state"], NEEDED, SnapshotPlace())
            done = True
        except PowerCut:
            pass
        for seed in range(6):
            found = disk.crash_clone(Random(seed))
            snapshots = Snapshots(found, "g")
            stored = snapshots.newest()
            assert stored is not None or not done
            if stored is not None:
                path = f"{stored.directory}/live"
                assert LiveSet.from_bytes(found.open_read(path).pread(10_000, 0)) == NEEDED
        if done:
            break
    assert nth > 10


def test_a_checkpoint_is_promoted_with_the_indexes_that_it_needs() -> None:
    """[H5] They are damaged: rebuilt from the state, not taken as none."""
    fs = MemoryFileSystem()
    snapshots = Snapshots(fs, "g")
    pieces = [NEEDED.to_bytes()]
    stored = snapshots.write(head(22), pieces, NEEDED, SnapshotPlace(), checkpoint=True)
    fs.flip(f"{stored.directory}/live", 40)
    assert snapshots.newest() is None, "a checkpoint cuts nothing off"
    promoted = snapshots.promote(30)
    assert promoted is not None
    assert snapshots.live(promoted, lambda found: rebuild(GROUP, found)) == NEEDED
    newest = snapshots.newest()
    assert newest is not None
    assert newest.index == 22


def test_a_damaged_state_is_an_error_unless_an_older_snapshot_is_there() -> None:
    fs = MemoryFileSystem()
    snapshots = Snapshots(fs, DIRECTORY)
    for index in (10, 22):
        stored = snapshots.write(head(index), [b"state"], LiveSet.empty(), SnapshotPlace())
    fs.flip(f"{stored.directory}/snapshot", 30)
    older = snapshots.newest()
    assert older is not None
    assert older.index == 10
    fs.flip(f"{older.directory}/snapshot", 30)
    with pytest.raises(DamagedFile, match="snapshot"):
        snapshots.newest()
