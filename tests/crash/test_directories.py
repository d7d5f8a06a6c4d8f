"""The power is cut at every operation of creating, deleting, adopting and restoring.

Afterwards the node is opened with the definitions that are there, with none, and with older ones.
What was acknowledged and not deleted is served or can be adopted, with all that was in it. What was
deleted is gone for readers. What was in flight is whole or gone, never a part.
"""

from __future__ import annotations

import random
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from lithify.blobs.settings import BlobSettings
from lithify.blobs.stores import BlobStores
from lithify.clock import ManualClock
from lithify.events import ignore_events
from lithify.fs import MemoryFileSystem, read_file, write_atomic
from lithify.node.backup.backup import run_backup
from lithify.node.backup.backup_list import BACKUP
from lithify.node.backup.restore import check_backup, run_restore
from lithify.settings import LogSettings
from lithify.testing.faulty_fs import Fault, FaultyFileSystem, PowerCut
from lithify.topics.topics import Topics, TopicSettings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from lithify.fs import FileSystem

NODE = "/data"
DEFINITIONS = f"{NODE}/definitions"
MIB = 2**20
FEW = 1, 1
"""Every operation, a power cut each: for the tests that cost little."""
SOME = 1, 7
"""A power cut at every seventh operation; the slow tests take all."""
MANY = 4, 1
few_and_many = pytest.mark.parametrize("cut", [FEW, pytest.param(MANY, marks=pytest.mark.slow)])
some_and_many = pytest.mark.parametrize("cut", [SOME, pytest.param(MANY, marks=pytest.mark.slow)])


@dataclass
class Stage:
    """A node without clients."""

    topics: Topics
    stores: BlobStores

    def close(self) -> None:
        self.stores.close()
        self.topics.close()


def opened(fs: FileSystem, directory: str = NODE) -> Stage:
    clock = ManualClock()
    topics = Topics(
        fs,
        directory,
        settings=TopicSettings(log=LogSettings()),
        clock=clock,
        events=ignore_events,
        owner="pid 1",
    )
    stores = BlobStores(
        fs,
        directory,
        topics.definitions,
        settings=BlobSettings(),
        clock=clock,
        events=ignore_events,
    )
    return Stage(topics, stores)


def prepared() -> tuple[MemoryFileSystem, bytes]:
    """A node with topics and stores; and its definitions from before anything was in them."""
    fs = MemoryFileSystem()
    node = opened(fs)
    node.topics.definitions.change(lambda d: d.with_tenant("acme", {}))
    oldest = read_file(fs, DEFINITIONS)
    for name in ("kept", "doomed-partition-x"):
        node.topics.create(name).append(value=name.encode())
    node.topics.create_partitioned("parts", 3)
    for number in (0, 2):
        node.topics.get(f"parts-partition-{number}").append(value=b"%d" % number)
    for name in ("kept", "doomed"):
        made = node.stores.create(name, capacity_bytes=4 * MIB, segment_bytes=MIB)
        made.put(name.encode(), service="s", blob_id=name)
    node.close()
    return fs, oldest


def found_in(node: Stage) -> dict[str, list[bytes | None]]:
    """Everything that readers find, after adopting all there is."""
    for topic in node.topics.unclaimed():
        node.topics.adopt(topic.name)
    for each in node.stores.unclaimed():
        node.stores.adopt(each.name)
    found: dict[str, list[bytes | None]] = {}
    for name in node.topics.definitions.current.topics:
        local = name.rpartition("/")[2]
        count = node.topics.partitions(name)
        parts = [f"{name}-partition-{number}" for number in range(count)] or [name]
        found[local] = [m.value for part in parts for m in node.topics.get(part).read()]
    for name in node.stores.names():
        store = node.stores.get(name)
        found[f"store {name}"] = [store.get(info.blob_id).read() for info in store.list()]
    return found


BEFORE = {
    "kept": [b"kept"],
    "doomed-partition-x": [b"doomed-partition-x"],
    "parts": [b"0", b"2"],
    "store kept": [b"kept"],
    "store doomed": [b"doomed"],
}


def delete_topic(fs: FileSystem) -> None:
    opened(fs).topics.delete("doomed-partition-x")


def delete_partitions(fs: FileSystem) -> None:
    opened(fs).topics.delete("parts")


def delete_store(fs: FileSystem) -> None:
    opened(fs).stores.delete("doomed")


def create_topic(fs: FileSystem) -> None:
    opened(fs).topics.create("new")


def create_store(fs: FileSystem) -> None:
    opened(fs).stores.create("new", capacity_bytes=4 * MIB, segment_bytes=MIB)


def copy_store(fs: FileSystem) -> None:
    opened(fs).stores.copy("kept", "new", capacity_bytes=8 * MIB, segment_bytes=MIB)


ACTS: list[tuple[Callable[[FileSystem], None], str, list[bytes | None] | None]] = [
    (delete_topic, "doomed-partition-x", None),
    (delete_partitions, "parts", None),
    (delete_store, "store doomed", None),
    (create_topic, "new", []),
    (create_store, "store new", []),
    (copy_store, "store new", [b"kept"]),
]


def cuts(
    act: Callable[[FileSystem], None], start: MemoryFileSystem, cut: tuple[int, int]
) -> Iterator[tuple[MemoryFileSystem, bool]]:
    """What is left after a cut at each operation, and whether the act had returned."""
    seeds, step = cut
    for nth in range(1, 10_000, step):
        disk = start.kill_clone()
        returned = False
        with suppress(PowerCut):
            act(FaultyFileSystem(disk, [Fault("mutating", nth=nth, kind="CRASH")]))
            returned = True
        yield disk.kill_clone(), returned
        for seed in range(seeds):
            yield disk.crash_clone(random.Random(nth * 100 + seed)), returned
        if returned:
            return
    raise AssertionError


@few_and_many
@pytest.mark.parametrize("definitions", ["as left", "missing", "older"])
@pytest.mark.parametrize(("act", "name", "after"), ACTS, ids=lambda v: getattr(v, "__name__", ""))
def test_a_power_cut_leaves_a_log_complete_or_deleted(
    act: Callable[[FileSystem], None],
    name: str,
    after: list[bytes | None] | None,
    definitions: str,
    cut: tuple[int, int],
) -> None:
    start, oldest = prepared()
    for left, returned in cuts(act, start, cut):
        if definitions == "missing":
            with suppress(FileNotFoundError):
                left.remove(DEFINITIONS)
        elif definitions == "older":
            write_atomic(left, DEFINITIONS, oldest)
        node = opened(left)
        found = found_in(node)
        node.close()
        rest = {key: value for key, value in BEFORE.items() if key != name}
        assert {key: found[key] for key in rest} == rest
        assert not found.keys() - BEFORE.keys() - {name}
        if returned and (after is None or definitions == "as left"):
            assert found.get(name) == after
        elif name in found:
            assert found[name] in (BEFORE.get(name, after), after)


@few_and_many
def test_a_cut_while_adopting_leaves_it_adopted_or_unclaimed(cut: tuple[int, int]) -> None:
    start, _ = prepared()
    start.remove(DEFINITIONS)
    start.sync_dir(NODE)

    def adopt(fs: FileSystem) -> None:
        node = opened(fs)
        node.topics.adopt("parts")
        node.stores.adopt("doomed")

    for left, _ in cuts(adopt, start, cut):
        node = opened(left)
        assert found_in(node) == BEFORE
        node.close()


@some_and_many
def test_a_cut_while_saving_leaves_no_backup_or_a_whole_one(cut: tuple[int, int]) -> None:
    start, _ = prepared()

    def save(fs: FileSystem) -> None:
        run_backup(fs, NODE, "/backup", clock=ManualClock())

    finished = 0
    for left, returned in cuts(save, start, cut):
        if left.exists(f"/backup/{BACKUP}"):
            finished += 1
            check_backup(left, "/backup")
            run_restore(left, "/backup", "/again", clock=ManualClock())
            node = opened(left, "/again")
            assert found_in(node) == BEFORE
            node.close()
        else:
            assert not returned
            # It can be created again in the same place.
            save(left)
        node = opened(left)
        assert found_in(node) == BEFORE
        node.close()
    assert finished


@some_and_many
def test_a_power_cut_during_a_restore_leaves_nothing_or_all_of_it(cut: tuple[int, int]) -> None:
    start, _ = prepared()
    run_backup(start, NODE, "/backup", clock=ManualClock())

    def restore(fs: FileSystem) -> None:
        run_restore(fs, "/backup", "/again", clock=ManualClock())

    for left, returned in cuts(restore, start, cut):
        node = opened(left, "/again")
        found = found_in(node)
        node.close()
        assert found in ({}, BEFORE)
        if returned:
            assert found == BEFORE
        if not found:
            restore(left)
        check_backup(left, "/backup")
