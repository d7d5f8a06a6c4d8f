"""Two nodes of a cluster import data directories of version 0.1 with the same names at once.

Each name has one owner afterwards. The directory of the other node is unclaimed, with a warning,
and has every byte that it had.
"""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from lithify.catalog.manager import executions
from lithify.catalog.manager.errors import CatalogBusy
from lithify.events import ignore_events
from lithify.fs import MemoryFileSystem, read_file
from lithify.log.object_file import read_object
from lithify.node.catalog import import_definitions as module
from lithify.node.catalog.definitions import CatalogDefinitions, DefinitionsUnknown
from lithify.node.catalog.import_definitions import IMPORTED, import_definitions
from lithify.topics.definitions.definitions import Definitions, NamespaceDefinition, TopicDefinition
from lithify.topics.definitions.definitions_file import write_definitions
from lithify.topics.definitions.topic_names import Namespace, TopicName
from tests.crash.test_directories import DEFINITIONS, NODE
from tests.crash.test_import_definitions import old_directory, opened_in
from tests.definitions_cluster import MemoryCluster
from tests.patience import PROCESS_S_MAX

if TYPE_CHECKING:
    from collections.abc import Callable

    from lithify.errors import LithifyError
    from tests.crash.test_directories import Stage

LOGS = {
    "kept": ["kept"],
    "doomed-partition-x": ["doomed-partition-x"],
    "parts": ["parts-partition-0", "parts-partition-2"],
}
STORES = ("kept", "doomed")
SHOP = Namespace("acme", "shop")


def data_files(fs: MemoryFileSystem, path: str) -> dict[str, bytes]:
    """All files below a directory but those that say whose it is, and locks."""
    found: dict[str, bytes] = {}
    for name in fs.list(path):
        below = f"{path}/{name}"
        if fs.stat(below).is_dir:
            found |= data_files(fs, below)
        elif name not in ("OBJECT", "LOCK"):
            found[below] = read_file(fs, below)
    return found


def all_data(fs: MemoryFileSystem) -> dict[str, bytes]:
    return data_files(fs, f"{NODE}/topics") | data_files(fs, f"{NODE}/blobs")


def open_at_once(cluster: MemoryCluster, disks: dict[str, MemoryFileSystem]) -> dict[str, Stage]:
    """The nodes, which all see the cluster as it is now before one of them begins."""
    members = {name: cluster.member(name) for name in disks}
    opened: dict[str, Stage] = {}
    errors: list[BaseException] = []
    begin = threading.Barrier(len(disks))

    def open_one(name: str) -> None:
        begin.wait(PROCESS_S_MAX)
        try:
            opened[name] = opened_in(disks[name], members[name])
        except BaseException as error:  # noqa: BLE001  (the test fails with it)
            errors.append(error)

    threads = [threading.Thread(target=open_one, args=(name,)) for name in disks]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert errors == []
    return opened


def check_topics(nodes: dict[str, Stage], disks: dict[str, MemoryFileSystem]) -> set[str]:
    owners = set()
    for local, logs in LOGS.items():
        name = TopicName.parse(local)
        (definition,) = {
            repr(node.topics.definitions.current.topics[str(name)]) for node in nodes.values()
        }
        some = next(iter(nodes.values())).topics.definitions.current
        (owner,) = set(some.topics[str(name)].owners)
        assert definition
        owners.add(owner)
        for node_name, node in nodes.items():
            unclaimed = {each.name: each for each in node.topics.unclaimed()}
            if node_name == owner:
                assert name not in unclaimed
                for log in logs:
                    assert len(list(node.topics.get(log).read())) == 1
                continue
            assert f"on node {owner}" in unclaimed[name].problem
            for log in logs:
                path = f"{NODE}/topics/public/default/{log}"
                assert read_object(disks[node_name], path) is None
    return owners


def check_stores(nodes: dict[str, Stage]) -> None:
    for name in STORES:
        (owner,) = {
            node.topics.definitions.current.store_places[name].owner for node in nodes.values()
        }
        for node_name, node in nodes.items():
            unclaimed = {each.name for each in node.stores.unclaimed()}
            assert (name in unclaimed) == (node_name != owner)
            if node_name == owner:
                assert node.stores.get(name).get(name).read() == name.encode()


@pytest.mark.parametrize("tries_max", [1, 10])
@pytest.mark.parametrize("batch_bytes", [1, 256 * 1024])
def test_each_name_has_one_owner_and_the_other_directory_is_unclaimed(
    batch_bytes: int,
    tries_max: int,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(module, "BATCH_BYTES", batch_bytes)
    monkeypatch.setattr(executions, "TRIES_MAX", tries_max)
    for _ in range(4):
        caplog.clear()
        disks = {name: old_directory()[0] for name in ("n1", "n2")}
        before = {name: all_data(fs) for name, fs in disks.items()}
        with MemoryCluster() as cluster:
            nodes = open_at_once(cluster, disks)
            assert {name: all_data(fs) for name, fs in disks.items()} == before
            owners = check_topics(nodes, disks)
            check_stores(nodes)
            lost = [line for line in caplog.messages if "belongs to another node" in line]
            # Four topics and two stores.
            assert len(lost) == 6
            assert all("node='n" in line and "owner='n" in line for line in lost)
            assert owners <= {"n1", "n2"}
            for name, node in nodes.items():
                node.close()
                assert not disks[name].exists(DEFINITIONS)
                assert disks[name].exists(f"{NODE}/{IMPORTED}")
            # The next start finds all of it as it was.
            again = {name: opened_in(fs, cluster.member(name)) for name, fs in disks.items()}
            check_topics(again, disks)
            check_stores(again)
            for node in again.values():
                node.close()


def definitions_in(fs: MemoryFileSystem, definitions: Definitions) -> MemoryFileSystem:
    fs.mkdir(NODE)
    write_definitions(fs, DEFINITIONS, definitions)
    return fs


ACME = Definitions({"acme": {}}, {str(SHOP): NamespaceDefinition()})


@pytest.mark.parametrize("with_topic", [False, True])
def test_an_import_does_not_remove_what_another_one_has_added_to_the_new_catalog(
    *, with_topic: bool
) -> None:
    with MemoryCluster() as cluster:
        first = definitions_in(MemoryFileSystem(), ACME)
        second = definitions_in(MemoryFileSystem(), Definitions({"b": {}}))
        one = CatalogDefinitions(cluster.member("n1"), first, NODE, ignore_events)
        other = CatalogDefinitions(cluster.member("n2"), second, NODE, ignore_events)
        # Both have found a new cluster.
        import_definitions(first, NODE, one)
        if with_topic:
            name = TopicName(SHOP, "t")
            one.change(lambda d: d.with_new_topic(name, TopicDefinition(owners=d.here)))
        import_definitions(second, NODE, other)
        assert set(other.current.tenants) == {"acme", "b"}
        assert set(other.current.namespaces) == {str(SHOP)}


class Hooked(CatalogDefinitions):
    """Something happens before each change."""

    before: Callable[[Definitions], None]

    def change(self, edit: Callable[[Definitions], Definitions]) -> Definitions:
        self.before(self.current)
        return super().change(edit)


def test_a_namespace_that_vanishes_during_an_import_is_added_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "BATCH_BYTES", 1)
    settings = {"retention_ms": 5}
    topic = str(TopicName(SHOP, "t"))
    found = replace(
        ACME,
        namespaces={str(SHOP): NamespaceDefinition(settings)},
        topics={topic: TopicDefinition(0, 7)},
    )
    fs = definitions_in(MemoryFileSystem(), found)
    with MemoryCluster() as cluster:
        other = CatalogDefinitions(cluster.member("n2"), MemoryFileSystem(), "/", ignore_events)

        def remove(current: Definitions) -> None:
            if str(SHOP) in current.namespaces and topic not in current.topics:
                other.change(lambda d: d.without_namespace(SHOP).without_tenant("acme"))

        hooked = Hooked(cluster.member("n1"), fs, NODE, ignore_events)
        hooked.before = remove
        import_definitions(fs, NODE, hooked)
        assert hooked.current.topics[topic].owners == ("n1",)
        assert hooked.current.namespace(SHOP).settings == settings


@pytest.mark.parametrize("error", [CatalogBusy(10), DefinitionsUnknown("unknown")])
def test_an_import_repeats_what_lost_races_and_what_is_unknown(error: LithifyError) -> None:
    class Failing(CatalogDefinitions):
        """Each change fails once after it was made, and once before."""

        failed: Any = 0

        def change(self, edit: Callable[[Definitions], Definitions]) -> Definitions:
            self.failed += 1
            if self.failed % 3 == 1:
                raise error
            found = super().change(edit)
            if self.failed % 3 == 2:
                raise error
            return found

    fs, before = old_directory()
    with MemoryCluster() as cluster:
        definitions = Failing(cluster.member(), fs, NODE, ignore_events)
        import_definitions(fs, NODE, definitions)
        assert definitions.current == before
        assert definitions.failed > 3
