"""The power is cut at every operation that changes the list of topics that have logs.

Afterwards no topic counts as missing that is there, and the directory of no topic that was
acknowledged can go without notice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from lithify.clock import ManualClock
from lithify.errors import MissingLog, WriteFailed
from lithify.fs.remove_tree import remove_tree
from lithify.node.backup.backup import run_backup
from lithify.node.backup.restore import run_restore
from lithify.testing.faulty_fs import Fault, FaultyFileSystem
from tests.crash.test_directories import (
    BEFORE,
    DEFINITIONS,
    NODE,
    Stage,
    create_topic,
    cuts,
    delete_partitions,
    delete_topic,
    few_and_many,
    found_in,
    opened,
    prepared,
    some_and_many,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from lithify.fs import FileSystem, MemoryFileSystem

INVENTORY = f"{NODE}/inventory"
ROOT = f"{NODE}/topics/public/default"
PARTS = {"parts-partition-0", "parts-partition-2"}
LOGS = {"kept", "doomed-partition-x", *PARTS}


def use_partition(fs: FileSystem) -> None:
    opened(fs).topics.get("parts-partition-1").append(value=b"first")


def create_and_fail(fs: FileSystem) -> None:
    """The disk refuses the last step, which is undone."""
    topics = opened(FaultyFileSystem(fs, [Fault("fdatasync", path=INVENTORY)])).topics
    with pytest.raises(WriteFailed):
        topics.create("new")


def without_definitions(fs: MemoryFileSystem) -> None:
    fs.remove(DEFINITIONS)
    fs.remove(INVENTORY)


def adopt_all(fs: FileSystem) -> None:
    topics = opened(fs).topics
    for topic in topics.unclaimed():
        topics.adopt(topic.name)


def without_list(fs: MemoryFileSystem) -> None:
    fs.remove(INVENTORY)


def damaged_list(fs: MemoryFileSystem) -> None:
    with fs.open_append(INVENTORY) as file:
        file.overwrite(b"x", 3)
        file.fsync()


def start(fs: FileSystem) -> None:
    opened(fs)


def as_it_is(_: MemoryFileSystem) -> None:
    pass


ACTS: list[
    tuple[Callable[[FileSystem], None], Callable[[MemoryFileSystem], None], set[str], set[str]]
] = [
    # What is done, to which data directory, what has a log before it, and what after it.
    (create_topic, as_it_is, LOGS, LOGS | {"new"}),
    (create_and_fail, as_it_is, LOGS, LOGS),
    (use_partition, as_it_is, LOGS, LOGS | {"parts-partition-1"}),
    (delete_topic, as_it_is, LOGS - {"doomed-partition-x"}, LOGS - {"doomed-partition-x"}),
    (delete_partitions, as_it_is, LOGS - PARTS, LOGS - PARTS),
    (start, without_list, set(), LOGS),
    (start, damaged_list, set(), LOGS),
    (adopt_all, without_definitions, set(), LOGS),
]


@few_and_many
@pytest.mark.parametrize(
    ("act", "prepare", "before", "after"), ACTS, ids=lambda v: getattr(v, "__name__", "")
)
def test_nothing_acknowledged_is_lost_without_an_error(
    act: Callable[[FileSystem], None],
    prepare: Callable[[MemoryFileSystem], None],
    before: set[str],
    after: set[str],
    cut: tuple[int, int],
) -> None:
    first, _ = prepared()
    prepare(first)
    first.sync_dir(NODE)
    for left, returned in cuts(act, first, cut):
        for name in after if returned else before:
            disk = left.kill_clone()
            assert disk.exists(f"{ROOT}/{name}/log/MANIFEST")
            remove_tree(disk, f"{ROOT}/{name}")
            node = opened(disk)
            with pytest.raises(MissingLog):
                node.topics.get(name, create=True)
            assert not disk.exists(f"{ROOT}/{name}")
        node = opened(left)
        assert node.topics.missing() == ()
        node.close()


@few_and_many
@pytest.mark.parametrize("name", ["kept", "parts"])
def test_the_loss_of_a_topic_is_accepted_or_not(name: str, cut: tuple[int, int]) -> None:
    first, _ = prepared()
    gone = {"kept"} if name == "kept" else {"parts-partition-0"}
    for each in gone:
        remove_tree(first, f"{ROOT}/{each}")
    first.sync_dir(ROOT)

    def accept(fs: FileSystem) -> None:
        opened(fs).topics.delete(name)

    for left, returned in cuts(accept, first, cut):
        node = opened(left)
        missing = {each.name.local for each in node.topics.missing()}
        assert missing in (set(), gone)
        if returned:
            assert not missing
        if missing:
            for each in gone:
                with pytest.raises(MissingLog):
                    node.topics.get(each, create=True)
            node.topics.delete(name)
        assert not node.topics.exists(name)
        node.topics.create(name)
        node.close()


@some_and_many
def test_a_missing_log_is_restored_completely_or_stays_missing(cut: tuple[int, int]) -> None:
    first, _ = prepared()
    run_backup(first, NODE, "/backup", clock=ManualClock())
    for path in (f"{ROOT}/kept", f"{ROOT}/parts-partition-2", f"{NODE}/blobs/kept"):
        remove_tree(first, path)
        first.sync_dir(path.rpartition("/")[0])

    def restore(fs: FileSystem) -> None:
        for topic, store in (("kept", None), ("parts", None), (None, "kept")):
            run_restore(fs, "/backup", NODE, clock=ManualClock(), topic=topic, store=store)

    def missing(node: Stage) -> set[str]:
        topics = (each.name.local for each in node.topics.missing())
        return {*topics, *(f"store {each['store']}" for each in node.stores.missing())}

    for left, returned in cuts(restore, first, cut):
        node = opened(left)
        found = missing(node)
        assert found <= {"kept", "parts-partition-2", "store kept"}
        assert not (returned and found)
        node.close()
        for topic in {"kept", "parts-partition-2"} & found:
            run_restore(left, "/backup", NODE, clock=ManualClock(), topic=topic.partition("-")[0])
        if "store kept" in found:
            run_restore(left, "/backup", NODE, clock=ManualClock(), store="kept")
        node = opened(left)
        assert not missing(node)
        assert found_in(node) == BEFORE
        node.close()
