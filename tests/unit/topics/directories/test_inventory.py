"""Topics that had logs are known by a list outside of their directories."""

from __future__ import annotations

import errno
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from lithify.errors import MissingLog, WriteFailed
from lithify.events import SideFileSetAside, ignore_events
from lithify.fs import MemoryFileSystem, read_file, write_atomic
from lithify.fs.remove_tree import remove_tree
from lithify.testing.faulty_fs import Fault, FaultyFileSystem
from lithify.topics.definitions.topic_names import TopicName
from lithify.topics.directories.inventory import OBSOLETE_LINES_MAX, Inventory, read_inventory
from lithify.topics.topics import TopicNotFound
from tests.unit.topics.test_topics import NODE, open_topics, values

if TYPE_CHECKING:
    from lithify.events import Event

INVENTORY = f"{NODE}/inventory"
DEFINITIONS = f"{NODE}/definitions"
ROOT = f"{NODE}/topics/public/default"
PATH = "/node/inventory"


def named(*names: str) -> list[TopicName]:
    return [TopicName.parse(name) for name in names]


def short(fs: MemoryFileSystem, path: str = INVENTORY) -> set[str]:
    return {name.rpartition("/")[2] for name in read_inventory(fs, path)}


def filled(fs: MemoryFileSystem) -> None:
    topics = open_topics(fs)
    for name in ("orders", "kept"):
        topics.create(name).append(value=name.encode())
    topics.create_partitioned("parts", 3)
    for number in (0, 2):
        topics.get(f"parts-partition-{number}").append(value=b"%d" % number)
    topics.close()


# --- a topic whose directory is gone -------------------------------------------------------------


@pytest.mark.parametrize("name", ["orders", "parts-partition-2"])
def test_a_topic_without_its_directory_is_not_served(name: str) -> None:
    fs = MemoryFileSystem()
    filled(fs)
    remove_tree(fs, f"{ROOT}/{name}")
    topics = open_topics(fs)
    for create in (False, True):
        with pytest.raises(MissingLog, match=rf"{name}/log/MANIFEST.*missing, but inventory has"):
            topics.get(name, create=create)
    assert not fs.exists(f"{ROOT}/{name}")
    assert values(topics, "kept") == [b"kept"]
    assert values(topics, "parts-partition-0") == [b"0"]
    assert values(topics, "parts-partition-1") == [], "it was never used"
    (missing,) = topics.missing()
    row = {"topic": f"persistent://public/default/{name}", "directory": f"{ROOT}/{name}"}
    assert missing.row() == {**row, "defined": True}


def test_health_has_it_from_the_start_and_until_it_is_deleted() -> None:
    fs = MemoryFileSystem()
    filled(fs)
    remove_tree(fs, f"{ROOT}/orders")
    topics = open_topics(fs)
    assert len(topics.unopened()) == 3
    (reason,) = topics.damage_found()
    assert "orders" in reason
    topics.delete("orders")
    assert topics.damage_found() == ()
    assert topics.missing() == ()
    topics.close()
    topics = open_topics(fs)
    topics.create("orders")
    assert values(topics, "orders") == []


def test_a_restored_directory_is_served_again() -> None:
    fs = MemoryFileSystem()
    filled(fs)
    fs.rename(f"{ROOT}/orders", "/elsewhere")
    topics = open_topics(fs)
    with pytest.raises(MissingLog):
        topics.get("orders")
    fs.rename("/elsewhere", f"{ROOT}/orders")
    assert values(topics, "orders") == [b"orders"]
    assert topics.damage_found() == ()


def test_a_topic_closed_while_idle_is_not_recreated() -> None:
    fs = MemoryFileSystem()
    filled(fs)
    topics = open_topics(fs)
    for name in named("orders", "parts-partition-0"):
        topics.get(name)
        topics.unloading([name])()
        remove_tree(fs, f"{ROOT}/{name.local}")
        with pytest.raises(MissingLog):
            topics.get(name, create=True)


def test_a_topic_that_cannot_be_listed_is_not_created() -> None:
    fs = FaultyFileSystem(MemoryFileSystem())
    topics = open_topics(fs)
    topics.create("kept")
    for create in (topics.create, lambda name: topics.get(name, create=True)):
        fs.add(Fault("mutating", "*inventory*", count=None))
        with pytest.raises(WriteFailed):
            create("orders")
        fs.clear()
        assert not topics.exists("orders")
        assert fs.list(ROOT) == ["kept"]
    topics.create("orders")
    assert read_inventory(fs, INVENTORY) == {str(name) for name in named("kept", "orders")}


def test_without_its_definition_it_is_missing_too_and_can_be_deleted() -> None:
    fs = MemoryFileSystem()
    filled(fs)
    for name in ("orders", "parts-partition-0", "parts-partition-2"):
        remove_tree(fs, f"{ROOT}/{name}")
    fs.remove(DEFINITIONS)
    topics = open_topics(fs)
    assert [each.defined for each in topics.missing()] == [False] * 3
    topics.unopened()
    assert len(topics.damage_found()) == 3
    with pytest.raises(MissingLog):
        topics.get("orders", create=True)
    with pytest.raises(MissingLog):
        topics.create_partitioned("parts", 3)
    topics.delete("orders")
    topics.delete("parts")
    assert topics.damage_found() == ()
    assert topics.missing() == ()
    topics.create("orders")
    topics.create_partitioned("parts", 3)
    with pytest.raises(TopicNotFound):
        topics.delete("kept")
    assert [str(each.name.local) for each in topics.unclaimed()] == ["kept"]


def test_a_partitioned_topic_of_which_a_part_is_missing_is_deleted_whole() -> None:
    fs = MemoryFileSystem()
    filled(fs)
    remove_tree(fs, f"{ROOT}/parts-partition-0")
    topics = open_topics(fs)
    topics.delete("parts")
    assert short(fs) == {"orders", "kept"}
    assert fs.list(ROOT) == ["kept", "orders"]


def test_schemas_do_not_make_the_directory_of_a_missing_topic() -> None:
    fs = MemoryFileSystem()
    filled(fs)
    remove_tree(fs, f"{ROOT}/orders")
    topics = open_topics(fs)
    with pytest.raises(MissingLog):
        topics.schemas("orders")


# --- the list ------------------------------------------------------------------------------------


def test_a_data_directory_without_the_list_gets_it_from_what_is_found() -> None:
    fs = MemoryFileSystem()
    filled(fs)
    before = short(fs)
    assert before == {"orders", "kept", "parts-partition-0", "parts-partition-2"}
    fs.remove(INVENTORY)
    open_topics(fs).close()
    assert short(fs) == before


def test_while_all_directories_are_gone_no_list_is_made_of_what_is_found() -> None:
    fs = MemoryFileSystem()
    filled(fs)
    fs.remove(INVENTORY)
    fs.rename(f"{NODE}/topics", "/unmounted")
    open_topics(fs).close()
    assert not fs.exists(INVENTORY)
    fs.rename("/unmounted", f"{NODE}/topics")
    open_topics(fs).close()
    assert "orders" in short(fs)


def test_an_adopted_topic_is_in_the_list() -> None:
    fs = MemoryFileSystem()
    filled(fs)
    fs.remove(DEFINITIONS)
    fs.remove(INVENTORY)
    topics = open_topics(fs)
    assert short(fs) == set()
    topics.adopt("parts")
    assert short(fs) == {"parts-partition-0", "parts-partition-2"}


@pytest.mark.parametrize(
    "content",
    [b"", b"\0" * 40, b'00000000 {"version":1}\n', b'1bdb1bda {"version":9}\n'],
    ids=["empty", "zeros", "a wrong CRC", "another version"],
)
def test_an_unusable_list_is_set_aside_and_rebuilt(content: bytes) -> None:
    fs = MemoryFileSystem()
    filled(fs)
    before = short(fs)
    write_atomic(fs, INVENTORY, content)
    open_topics(fs).close()
    assert read_file(fs, f"{INVENTORY}.damaged-1") == content
    assert short(fs) == before


def test_intact_lines_of_a_damaged_list_count_for_topics_that_are_defined() -> None:
    fs = MemoryFileSystem()
    filled(fs)
    topics = open_topics(fs)
    topics.delete("kept")
    topics.close()
    data = read_file(fs, INVENTORY)
    lines = data.splitlines(keepends=True)
    (number,) = (n for n, line in enumerate(lines) if b'"deleted"' in line)
    lines[number] = lines[number].replace(b"kept", b"kepd")
    write_atomic(fs, INVENTORY, b"".join(lines))
    remove_tree(fs, f"{ROOT}/orders")
    topics = open_topics(fs)
    assert [each.name.local for each in topics.missing()] == ["orders"]
    topics.create("kept")


def test_lines_are_appended_and_the_file_is_replaced_when_most_are_of_no_use() -> None:
    fs = MemoryFileSystem()
    fs.mkdir("/node")
    faulty = FaultyFileSystem(fs, [], record=True)
    inventory = Inventory(faulty, PATH, ignore_events)
    inventory.add(named("first"))
    done = len(faulty.trace)
    kept = named(*(f"t{number}" for number in range(20)))
    for name in kept:
        inventory.add([name])
    # One sync each, and nothing that grows with the number of topics.
    operations = Counter(line.split()[0] for line in faulty.trace[done:])
    assert operations == dict.fromkeys(["open_append", "write", "fdatasync"], len(kept))
    size = fs.stat(PATH).size
    for _ in range(OBSOLETE_LINES_MAX):
        inventory.add(named("again"))
        inventory.remove(named("again"))
    assert fs.stat(PATH).size < size + 100 * (OBSOLETE_LINES_MAX + 2 * len(kept) + 2)
    again = Inventory(fs, PATH, ignore_events)
    assert again.names() == sorted([*kept, *named("first")])


@pytest.mark.parametrize("operation", ["write", "fdatasync"])
def test_an_append_that_failed_leaves_nothing_that_counts_later(operation: str) -> None:
    fs = MemoryFileSystem()
    fs.mkdir("/node")
    Inventory(fs, PATH, ignore_events).add(named("kept"))
    fault = Fault(operation, path=PATH, nth=1, kind="EIO")
    inventory = Inventory(FaultyFileSystem(fs, [fault]), PATH, ignore_events)
    with pytest.raises(WriteFailed):
        inventory.add(named("new"))
    assert named("new")[0] not in inventory
    inventory.remove(named("new"))
    events: list[Event] = []
    assert Inventory(fs, PATH, events.append).names() == named("kept")
    assert not [event for event in events if isinstance(event, SideFileSetAside)]


def test_a_topic_that_cannot_be_written_down_is_not_created() -> None:
    fs = MemoryFileSystem()
    filled(fs)
    faults = [Fault("fdatasync", path=INVENTORY, nth=1, kind="ENOSPC")]
    topics = open_topics(FaultyFileSystem(fs, faults))
    with pytest.raises(WriteFailed) as caught:
        topics.create("new")
    assert isinstance(caught.value.__cause__, OSError)
    assert caught.value.__cause__.errno == errno.ENOSPC
    assert not topics.exists("new")
    topics.create("new").append(value=b"x")
    topics.close()
    assert values(open_topics(fs), "new") == [b"x"]


# --- the names of one topic ----------------------------------------------------------------------


def test_the_names_of_a_topic_are_found_after_every_change() -> None:
    fs = MemoryFileSystem()
    fs.mkdir("/node")
    inventory = Inventory(fs, PATH, ignore_events)
    odd = [TopicName(named("t")[0].namespace, name) for name in ("a/b-partition-1", "-partition-1")]
    parts = named("t-partition-0", "t-partition-12", "t-partition-1-partition-3")

    def found(name: str) -> list[str]:
        lists = [each.names_of(TopicName.parse(name)) for each in (inventory, reopened())]
        assert lists[0] == lists[1]
        return [each.local for each in lists[0]]

    def reopened() -> Inventory:
        return Inventory(fs, PATH, ignore_events)

    inventory.write([*named("t", "other"), *parts[:1]])
    assert found("t") == ["t", "t-partition-0"]
    inventory.add([*parts, *odd])
    assert found("t") == ["t", "t-partition-0", "t-partition-12"]
    assert found("t-partition-1") == ["t-partition-1-partition-3"]
    assert found("t-partition-0") == ["t-partition-0"]
    assert found("persistent://public/default/a/b") == ["a/b-partition-1"]
    assert found("persistent://public/default/-partition-1") == ["-partition-1"]
    inventory.remove([*named("t"), *parts[:2]])
    assert (found("t"), found("other"), found("none")) == ([], ["other"], [])


def test_a_missing_topic_is_refused_without_listing_the_others() -> None:
    topics = open_topics(MemoryFileSystem())
    for name in named("a", "b"):
        topics.create(name)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Inventory, "names", lambda _: pytest.fail("it reads all names"))
        with pytest.raises(TopicNotFound):
            topics.delete("none")
