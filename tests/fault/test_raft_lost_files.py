"""Files of a Raft node are deleted, or cut short, while `NODE` stays: the node does not start.

If it did, it would vote again although it has forgotten votes and acknowledged entries.
"""

from __future__ import annotations

import asyncio
import json
import shutil
from typing import TYPE_CHECKING

import pytest

from lithify.errors import Corrupt
from lithify.events import WriteRefused
from lithify.fs import LocalFileSystem, MemoryFileSystem
from lithify.fs.checked_lines import encode_line, read_lines
from lithify.live_set import LiveSet
from lithify.raft.core.values import HardState
from lithify.raft.entry import Entry
from lithify.raft.errors import EntriesLost, FilesLost
from lithify.raft.group.settings import GroupSettings
from lithify.raft.kv.client import KvClient
from lithify.raft.kv.machine import kv_machine
from lithify.raft.net.client_operations import Address
from lithify.raft.node.identity import NodeIdentity
from lithify.raft.node.node import RaftNode
from lithify.raft.node.settings import RaftNodeSettings
from lithify.raft.storage.segment_file import SegmentLimits
from lithify.raft.storage.storage import RaftStorage, StorageSettings
from lithify.raft.storage.wal.batch import StateSaved
from lithify.raft.storage.wal.wal import Rolled
from lithify.testing.faulty_fs import Fault, FaultyFileSystem
from tests.unit.raft.net.nodes import until
from tests.unit.raft.node.test_node import client_of, running

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from lithify.fs import FileSystem

STORAGE = StorageSettings(2**13, SegmentLimits(40, 2**20))


def settings(directory: Path, *, snapshot_entries: int = 10_000) -> RaftNodeSettings:
    group = GroupSettings(snapshot_entries=snapshot_entries)
    listen = Address("127.0.0.1", 0)
    return RaftNodeSettings("n1", str(directory), listen, tick_ms=20, group=group, storage=STORAGE)


def opened(directory: Path) -> RaftNode:
    return RaftNode(settings(directory), LocalFileSystem(), kv_machine)


def lived(directory: Path, *, snapshot: bool) -> Path:
    """The directory of a node that has taken writes, in segments and write-ahead log."""

    async def story() -> None:
        async with running(settings(directory)) as node, client_of(node) as client:
            kv, group = KvClient(client, "default"), node.groups["default"]
            for start in range(0, 400, 50):
                # Each key twice: half of the entries are dead at the snapshot.
                keys = (b"k%d" % (n % 100) for n in range(start, start + 50))
                await asyncio.gather(*(kv.put(key, b"x" * 200) for key in keys))
            if snapshot:
                group.take_snapshot()
                node.mark(group)
                await until(lambda: group.overview()["snapshot_index"] > 0)
                await until(lambda: node.storage.groups["default"].log.segments.spans[0].first > 2)
            await asyncio.gather(*(kv.put(b"k%d" % n, b"y" * 200) for n in range(60)))
            await until(lambda: len(node.storage.groups["default"].log.segments.spans) >= 3)
            await until(lambda: len(list((directory / "wal").iterdir())) == 1)

    asyncio.run(story())
    return directory


@pytest.fixture(scope="module")
def without_snapshot(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return lived(tmp_path_factory.mktemp("plain") / "n1", snapshot=False)


@pytest.fixture(scope="module")
def with_snapshot(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return lived(tmp_path_factory.mktemp("snapshot") / "n1", snapshot=True)


def a_copy(directory: Path, tmp_path: Path) -> Path:
    return shutil.copytree(directory, tmp_path / "n1", symlinks=True)


def segments(directory: Path) -> list[Path]:
    return sorted((directory / "groups/default").glob("*.segment"))


def remove_all(paths: list[Path]) -> None:
    for path in paths:
        path.unlink()


def only_wal(directory: Path) -> Path:
    (path,) = (directory / "wal").iterdir()
    return path


LOSSES: dict[str, Callable[[Path], object]] = {
    "the directory of the write-ahead log": lambda d: shutil.rmtree(d / "wal"),
    "the file of the write-ahead log": lambda d: only_wal(d).unlink(),
    "all bytes of the write-ahead log": lambda d: only_wal(d).write_bytes(b""),
    "all groups": lambda d: shutil.rmtree(d / "groups"),
    "the group": lambda d: shutil.rmtree(d / "groups/default"),
    "all segments": lambda d: remove_all(segments(d)),
    "the first segment": lambda d: segments(d)[0].unlink(),
    "a segment in the middle": lambda d: segments(d)[1].unlink(),
    "the last segment": lambda d: segments(d)[-1].unlink(),
    "the manifest": lambda d: (d / "MANIFEST").unlink(),
}


@pytest.mark.parametrize("what", LOSSES)
def test_a_node_that_has_lost_files_does_not_start(
    without_snapshot: Path, tmp_path: Path, what: str
) -> None:
    directory = a_copy(without_snapshot, tmp_path)
    LOSSES[what](directory)
    for _ in range(2):
        # The first attempt must not make the second one succeed.
        with pytest.raises((FilesLost, EntriesLost, Corrupt)) as raised:
            opened(directory)
        assert str(directory) in str(raised.value)
        if isinstance(raised.value, FilesLost):
            assert "docs/runbooks.md" in str(raised.value)


@pytest.mark.parametrize("what", [*LOSSES, "the snapshot"])
def test_a_node_that_lost_its_snapshot_does_not_start(
    with_snapshot: Path, tmp_path: Path, what: str
) -> None:
    directory = a_copy(with_snapshot, tmp_path)
    if what == "the snapshot":
        shutil.rmtree(next((directory / "groups/default/snapshots").iterdir()))
    else:
        LOSSES[what](directory)
    with pytest.raises((FilesLost, EntriesLost, Corrupt)):
        opened(directory)


def test_nothing_lost_opens(without_snapshot: Path, with_snapshot: Path, tmp_path: Path) -> None:
    for number, each in enumerate((without_snapshot, with_snapshot)):
        directory = a_copy(each, tmp_path / str(number))
        for _ in range(2):
            node = opened(directory)
            assert node.groups["default"].status().last_index > 400
            node.storage.close()


def test_a_snapshot_that_is_all_there_was_is_missed(tmp_path: Path) -> None:
    """Nothing is live, nothing is above it: no segment tells that there was a log."""

    async def story() -> None:
        async with running(settings(tmp_path / "n1")) as node, client_of(node) as client:
            kv, group = KvClient(client, "default"), node.groups["default"]
            await kv.put(b"k", b"v")
            await kv.delete(b"k")
            index = group.applied_index
            group.take_snapshot()
            node.mark(group)
            await until(lambda: group.overview()["snapshot_index"] >= index)
            node.storage.wal.ask_roll("test")
            await until(lambda: node.storage.settled_number >= 1)
            await until(lambda: 1 not in node.storage.manifest.wal)

    asyncio.run(story())
    directory = tmp_path / "n1"
    assert not segments(directory)
    shutil.rmtree(next((directory / "groups/default/snapshots").iterdir()))
    with pytest.raises(FilesLost, match="must reach to entry"):
        opened(directory)


def three_files(directory: Path) -> list[Path]:
    """A directory with three files of the write-ahead log that no segment has yet."""
    fs = LocalFileSystem()
    fs.mkdir(str(directory))
    storage = RaftStorage(fs, str(directory), STORAGE)
    storage.open_groups(lambda *_: pytest.fail("there is no state"))
    identity = NodeIdentity(fs, str(directory), "n1", "raft")
    identity.groups["default"] = ["n1", "n2", "n3"]
    identity.save()
    storage.create("default")
    wal = storage.wal
    wal.save("default", HardState(3, "n2", 0))
    for index in range(1, 31):
        wal.append("default", [Entry(index, 3, bytes(8) + b"x" * 50)], index - 1)
        wal.flush()
        if index in (10, 20):
            assert any(isinstance(event, Rolled) for event in wal.roll())
    storage.close()
    return sorted((directory / "wal").iterdir())


@pytest.mark.parametrize(
    ("place", "how"),
    # What is cut off the last file at the end of a batch cannot be told from what was not written.
    [(place, how) for place in range(3) for how in ("gone", "empty", "cut")][:-1],
)
def test_one_of_several_files_of_the_write_ahead_log(tmp_path: Path, place: int, how: str) -> None:
    files = three_files(tmp_path / "n1")
    assert len(files) == 3
    node = opened(tmp_path / "n1")
    assert node.groups["default"].status().last_index == 30
    node.storage.close()
    if how == "gone":
        files[place].unlink()
    elif how == "empty":
        files[place].write_bytes(b"")
    else:
        # Where a batch ends: nothing but the length tells that one is missing.
        files[place].write_bytes(files[place].read_bytes()[: -(24 + 36 + 58)])
    with pytest.raises(Corrupt) as raised:
        opened(tmp_path / "n1")
    assert str(files[place]) in str(raised.value)


def test_a_group_without_its_directory_still_has_its_vote(tmp_path: Path) -> None:
    """All its entries are in the write-ahead log, so nothing is lost but an empty directory."""
    three_files(tmp_path / "n1")
    shutil.rmtree(tmp_path / "n1/groups")
    node = opened(tmp_path / "n1")
    status = node.groups["default"].status()
    assert (status.term, status.vote, status.last_index) == (3, "n2", 30)
    node.storage.close()


def as_of_an_earlier_version(directory: Path, *, manifest: bool = False) -> None:
    if not manifest:
        (directory / "MANIFEST").unlink()
    node = directory / "NODE"
    ((_, line),), _ = read_lines(LocalFileSystem(), str(node))
    value = json.loads(line) | {"version": 4}
    for name in ("cluster_id", "starts", "met_starts"):
        del value[name]
    node.write_bytes(encode_line(json.dumps(value)))


def test_a_directory_of_an_earlier_version_gets_a_manifest(
    without_snapshot: Path, tmp_path: Path
) -> None:
    directory = a_copy(without_snapshot, tmp_path)
    as_of_an_earlier_version(directory)
    opened(directory).storage.close()
    assert (directory / "MANIFEST").exists()
    shutil.rmtree(directory / "groups")
    with pytest.raises(FilesLost):
        opened(directory)


def test_an_earlier_version_may_run_again_after_a_later_one(
    without_snapshot: Path, tmp_path: Path
) -> None:
    """It does not know the manifest, and removes files that are listed there."""
    directory = a_copy(without_snapshot, tmp_path)
    as_of_an_earlier_version(directory, manifest=True)
    (old,) = (directory / "wal").iterdir()
    number = int(old.stem) + 1
    manifest = directory / "MANIFEST"
    ((_, line),), _ = read_lines(LocalFileSystem(), str(manifest))
    value = json.loads(line)
    value["wal"] = {str(number): 2**20}
    value["ends"] = {"default": [2**20, 0, 0]}
    manifest.write_bytes(encode_line(json.dumps(value)))
    opened(directory).storage.close()
    ((_, line),), _ = read_lines(LocalFileSystem(), str(manifest))
    assert list(json.loads(line)["wal"]) != [str(number)]


def test_a_vote_is_kept_when_the_manifest_cannot_be_written() -> None:
    """The next file is durable by then, with states from before, and is replayed last."""
    disk = MemoryFileSystem()
    fs = FaultyFileSystem(disk, [])

    def storage(fs: FileSystem) -> RaftStorage:
        made = RaftStorage(fs, "data", StorageSettings(wal_bytes_max=300))
        made.open_groups(lambda _group, _pieces: LiveSet())
        return made

    first = storage(fs)
    first.create("g")
    first.wal.save("g", HardState(1, "n1"))
    first.wal.flush()
    fs.add(Fault("mutating", "*/MANIFEST*", count=None, kind="ENOSPC"))
    first.wal.ask_roll("g")
    assert any(isinstance(event, WriteRefused) for event in first.wal.flush())
    fs.clear()
    fs.add(Fault("write", "*", count=None, kind="ENOSPC"))
    first.wal.save("g", HardState(7, "n2"))
    assert [type(event) for event in first.wal.flush()] == [WriteRefused]
    fs.clear()
    assert any(isinstance(event, StateSaved) for event in first.wal.flush())
    assert storage(disk.kill_clone()).groups["g"].hard_state == HardState(7, "n2")
