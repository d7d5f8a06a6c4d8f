"""One rename publishes; if its outcome is unknown, the manifest on disk decides."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from lithify.errors import WriteFailed
from lithify.events import Event, Published, WriteRefused
from lithify.fs import MemoryFileSystem
from lithify.log.manifest import Manifest, Retired, SegmentRef, read_manifest, write_manifest
from lithify.log.manifest_publisher import ManifestPublisher
from lithify.testing.faulty_fs import Fault, FaultyFileSystem
from tests.unit.log.helpers import contents, fill, open_log

DIRECTORY = "/log"
ONE = SegmentRef(1, "000000000001.seg", 0, 9, 10, 100, 300, sealed=True)
TWO = SegmentRef(2, "000000000002.seg", 10)
FIRST = Manifest("test", bytes(12), 1, 3, (ONE, TWO))


class World:
    """A publisher, its disk, and what it told."""

    def __init__(self, *rules: str) -> None:
        self.disk = MemoryFileSystem()
        self.disk.mkdir(DIRECTORY)
        write_manifest(self.disk, DIRECTORY, FIRST)
        self.fs = FaultyFileSystem(self.disk, [Fault.parse(rule) for rule in rules])
        self.events: list[Event] = []
        self.told: list[str] = []
        self.publisher = ManifestPublisher(
            self.fs, DIRECTORY, FIRST, self.events.append, names_synced=True
        )

    def settled(self) -> bool:
        return self.publisher.settled

    def publish(self) -> Manifest:
        return self.publisher.publish(
            lambda m: replace(m, segments=(TWO,)),
            "test",
            adopt=lambda m: self.told.append(f"adopted {m.generation}"),
            drop=lambda: self.told.append("dropped"),
        )


def test_files_that_the_manifest_no_longer_names_are_retired() -> None:
    world = World()
    second = world.publish()
    assert second.generation == 2
    assert second.retired == (Retired(ONE.name, 300, 2),)
    assert world.publisher.manifest == second == read_manifest(world.disk, DIRECTORY)
    third = world.publisher.publish(lambda m: replace(m, state={"a": 1}), "more")
    assert third.retired == second.retired
    assert world.told == ["adopted 2"]
    assert world.events == [
        Published(DIRECTORY, 2, "test"),
        Published(DIRECTORY, 3, "more"),
    ]


def test_an_edit_that_raises_changes_nothing() -> None:
    world = World()

    def edit(manifest: Manifest) -> Manifest:
        raise LookupError(manifest.kind)

    with pytest.raises(LookupError):
        world.publisher.publish(edit, "never")
    assert world.settled()
    assert world.publisher.manifest == FIRST == read_manifest(world.disk, DIRECTORY)


def test_a_state_that_cannot_be_written_changes_nothing() -> None:
    world = World()
    with pytest.raises(TypeError):
        world.publisher.publish(lambda m: replace(m, state={"a": object()}), "never")
    world.publisher.settle()
    assert world.publish().generation == 2


@pytest.mark.parametrize(
    "rule",
    [
        "sync_dir * EIO",
        "open_append *.tmp EIO",
        "write *.tmp SHORT",
        "fsync *.tmp EIO",
        "rename * EIO",
    ],
)
def test_a_failure_before_the_rename_leaves_the_old_generation(rule: str) -> None:
    world = World(rule)
    with pytest.raises(WriteFailed, match="/log/MANIFEST: "):
        world.publish()
    assert world.told == ["dropped"]
    assert world.settled()
    assert world.publisher.manifest == FIRST == read_manifest(world.disk, DIRECTORY)
    assert [type(event) for event in world.events] == [WriteRefused]
    assert world.publish().generation == 2


def test_a_failure_behind_the_rename_leaves_the_new_generation_once_it_is_durable() -> None:
    world = World("sync_dir * nth=2 count=3 EIO")
    with pytest.raises(WriteFailed, match="/log/MANIFEST: Input/output error"):
        world.publish()
    assert world.told == ["adopted 2"]
    assert not world.settled(), "a power cut could bring the old generation back"
    with pytest.raises(WriteFailed):
        world.publisher.settle()
    world.publisher.settle()
    assert world.settled()
    assert world.told == ["adopted 2"]
    for seed in range(20):
        left = world.disk.crash_clone(random.Random(seed))
        assert read_manifest(left, DIRECTORY).generation == 2


def test_it_is_not_guessed_what_an_interrupted_publish_left() -> None:
    world = World("rename * EIO", "open_read */MANIFEST EIO")
    with pytest.raises(WriteFailed):
        world.publish()
    assert not world.settled()
    assert world.told == []
    world.publisher.settle()
    assert world.told == ["dropped"]


def test_only_unpinned_files_are_deleted_and_missing_ones_are_skipped() -> None:
    world = World()
    retired = tuple(Retired(f"00000000000{n}.seg", 100 * n, n) for n in range(3, 7))
    for name in ("000000000003.seg", "000000000003.keys", "000000000006.seg"):
        world.disk.open_append(f"{DIRECTORY}/{name}").close()
    forgotten: list[str] = []
    paced: list[int] = []
    gone = world.publisher.delete(retired, 5, forgotten.append, paced.append)
    assert gone == frozenset(retired[:3])
    assert forgotten == [r.name for r in retired[:3]]
    assert paced == [300, 400, 500]
    assert world.disk.list(DIRECTORY) == ["000000000006.seg", "MANIFEST"]
    assert world.publisher.delete(retired, None, forgotten.append, paced.append) == set(retired)


def test_a_file_that_cannot_be_deleted_stays_retired() -> None:
    fs = FaultyFileSystem(MemoryFileSystem(), [Fault("remove", "*.seg")])
    log = open_log(fs)
    fill(log, 14)
    log.drop_head(7)
    with pytest.raises(WriteFailed, match=r"/log/000000000001\.seg: Input/output error"):
        log.reclaim()
    assert [r.name for r in log.manifest.retired] == ["000000000001.seg"]
    assert log.reclaim().files == 1
    assert list(contents(log)) == list(range(7, 14))
