"""Definitions of topics and stores in the catalog: read, changed by edits, copied for others."""

from __future__ import annotations

import random
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lithify.catalog.commands.blob_stores import CreateBlobStore
from lithify.catalog.commands.topics import CreateTopic, DropTopic
from lithify.catalog.objects import ObjectKind
from lithify.clock import ManualClock
from lithify.errors import InvalidInput, LithifyError, is_outcome_unknown
from lithify.events import ignore_events
from lithify.fs import MemoryFileSystem, read_file, sync_replaced, write_atomic
from lithify.metastore.errors import MetastoreUnavailable
from lithify.node.catalog import definitions as definitions_module
from lithify.node.catalog.definitions import CatalogDefinitions
from lithify.node.node_registry import NodeAddresses
from lithify.ownership import NotOwner
from lithify.settings import LogSettings
from lithify.testing.faulty_fs import Fault, FaultyFileSystem
from lithify.testing.memory_metastore import Happens
from lithify.topics.definitions.definitions import (
    AlreadyDefined,
    Definitions,
    NamespaceDefinition,
    NotDefined,
    NotEmpty,
    RemovedObject,
    TopicDefinition,
)
from lithify.topics.definitions.definitions_file import (
    COPY,
    DefinitionsFile,
    PendingDefinitions,
    read_definitions,
)
from lithify.topics.definitions.topic_names import Namespace, TopicName
from lithify.topics.topics import TopicNotFound, Topics, TopicSettings
from tests.definitions_cluster import Member, MemoryCluster

if TYPE_CHECKING:
    from collections.abc import Iterator

PUBLIC = Namespace("public", "default")
SHOP = Namespace("acme", "shop")
ANSWERS = 100
"""More than a change asks for."""
STORE = {
    "namespace": "public/default",
    "capacity_bytes": 4 << 20,
    "segment_bytes": 1 << 20,
    "created_ms": 5,
    "settings": {},
}


@pytest.fixture
def cluster() -> Iterator[MemoryCluster]:
    with MemoryCluster() as opened:
        yield opened


def opened(member: Member, fs: MemoryFileSystem | None = None) -> CatalogDefinitions:
    fs = fs or MemoryFileSystem()
    fs.mkdir("data")
    return CatalogDefinitions(member, fs, "data", ignore_events)


def topic(name: str) -> TopicName:
    return TopicName.parse(name)


def with_settings(name: str, key: str, value: object, d: Definitions) -> Definitions:
    found = d.topics[str(topic(name))]
    return d.with_topic(topic(name), replace(found, settings={**found.settings, key: value}))


def test_a_new_cluster_has_what_a_new_file_has(cluster: MemoryCluster) -> None:
    definitions = opened(cluster.member())
    assert definitions.current == Definitions.initial()
    assert not definitions.found


def test_a_change_is_seen_by_all_nodes(cluster: MemoryCluster) -> None:
    one, two = (opened(cluster.member(name)) for name in ("n1", "n2"))
    one.change(
        lambda d: d.with_tenant("acme", {"a": 1}).with_namespace(SHOP, NamespaceDefinition())
    )
    two.change(lambda d: d.with_new_topic(TopicName(SHOP, "orders"), TopicDefinition(2, 7)))
    found = two.current.topics["persistent://acme/shop/orders"]
    assert (found.partitions, found.created_ms, found.owners) == (2, 7, ("n2", "n2"))
    assert found.id
    one.change(lambda d: d.with_store("photos", STORE))
    assert two.current.topics_of(SHOP) == [TopicName(SHOP, "orders")]
    assert one.current == two.current
    assert one.current.store_places["photos"].owner == "n1"


def test_a_version_is_followed_once_if_the_metastore_does_not_answer_at_first(
    cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    member = cluster.member()
    get, ask = member.metastore.get, member.ask
    refusals = [MetastoreUnavailable("no quorum"), MetastoreUnavailable("no quorum")]

    async def get_later(*given: Any, **options: Any) -> Any:
        if refusals:
            raise refusals.pop()
        return await get(*given, **options)

    def ask_again(function: Any) -> Any:
        while True:
            with suppress(MetastoreUnavailable):
                return ask(function)

    monkeypatch.setattr(member.metastore, "get", get_later)
    monkeypatch.setattr(member, "ask", ask_again)
    definitions = opened(member)
    removed: list[RemovedObject] = []
    definitions.on_removed = removed.append
    definitions.change(lambda d: d.with_new_topic(topic("orders"), TopicDefinition(0, 7)))
    definitions.execute([DropTopic("public/default", "orders")])
    assert [each.identity.name for each in removed] == [str(topic("orders"))]


def test_a_new_store_is_placed_among_the_nodes_that_serve_http(cluster: MemoryCluster) -> None:
    member = cluster.member("n1")
    definitions = opened(member)
    assert definitions.place_store() == "n1"
    serves = {name: NodeAddresses(http=f"http://{name}:1", is_alive=True) for name in "ab"}
    member.addresses = {
        **serves,
        "n1": NodeAddresses(is_alive=True),
        "A-starts": NodeAddresses(is_alive=True),
        "A-silent": NodeAddresses(http="http://silent:1"),
    }
    placed = []
    for number in range(3):
        placed.append(definitions.place_store())
        definitions.execute(
            [CreateBlobStore("public/default", f"s{number}", 8, 8, owner=placed[-1])]
        )
    assert placed == ["a", "b", "n1"]
    definitions.check_store_place("new", "n1")
    with pytest.raises(NotOwner, match="blob store new belongs to node a "):
        definitions.check_store_place("new", "a")
    with pytest.raises(InvalidInput, match="node n9 is not a member"):
        definitions.check_store_place("new", "n9")


def test_an_edit_is_one_version_and_none_if_it_changes_nothing(cluster: MemoryCluster) -> None:
    definitions = opened(cluster.member())
    before = definitions.catalog.version
    definitions.change(
        lambda d: (
            d.with_tenant("acme", {})
            .with_namespace(SHOP, NamespaceDefinition({"x": 1}))
            .with_topic(TopicName(SHOP, "a"), TopicDefinition())
            .with_topic(TopicName(SHOP, "b"), TopicDefinition(3))
        )
    )
    assert definitions.catalog.version == before + 1
    definitions.change(lambda d: d.with_tenant("acme", {}))
    assert definitions.catalog.version == before + 1


def test_tenants_and_namespaces_are_removed_with_their_topics(cluster: MemoryCluster) -> None:
    definitions = opened(cluster.member())
    name = TopicName(SHOP, "a")
    definitions.change(
        lambda d: (
            d.with_tenant("acme", {})
            .with_namespace(SHOP, NamespaceDefinition())
            .with_topic(name, TopicDefinition())
        )
    )
    definitions.change(
        lambda d: d.without_topic(name).without_namespace(SHOP).without_tenant("acme")
    )
    assert definitions.current == Definitions.initial()
    assert [each.name for each in definitions.catalog.removals()] == [str(name)]


def test_the_errors_are_those_of_a_file(cluster: MemoryCluster) -> None:
    definitions = opened(cluster.member())
    definitions.change(lambda d: d.with_new_topic(topic("a"), TopicDefinition()))
    definitions.add_store("photos", STORE)
    with pytest.raises(AlreadyDefined, match=r"topic .*a exists"):
        definitions.change(lambda d: d.with_new_topic(topic("a"), TopicDefinition()))
    with pytest.raises(AlreadyDefined, match="photos"):
        definitions.add_store("photos", STORE)
    with pytest.raises(NotDefined, match="other"):
        definitions.remove_store("other")
    with pytest.raises(NotEmpty, match="has topics"):
        definitions.change(lambda d: d.without_namespace(PUBLIC))
    with pytest.raises(NotDefined, match="acme"):
        definitions.change(lambda d: d.with_namespace(SHOP, NamespaceDefinition()))
    with pytest.raises(InvalidInput, match="not partitioned"):
        definitions.change(lambda d: d.with_topic(topic("a"), TopicDefinition(3)))


def test_settings_are_replaced_and_not_merged(cluster: MemoryCluster) -> None:
    definitions = opened(cluster.member())
    deep = {"a": {"x": 1}, "b": True}
    definitions.change(lambda d: d.with_topic(topic("a"), TopicDefinition(0, 1, deep)))
    assert definitions.current.topics[str(topic("a"))].settings == deep
    definitions.change(lambda d: d.with_topic(topic("a"), TopicDefinition(0, 1, {"a": {"y": 2}})))
    assert definitions.current.topics[str(topic("a"))].settings == {"a": {"y": 2}}
    definitions.add_store("photos", STORE)
    definitions.change_store("photos", lambda row: {**row, "settings": {"ttl": 1}})
    assert definitions.stores()["photos"]["settings"] == {"ttl": 1}
    with pytest.raises(InvalidInput, match="only its settings"):
        definitions.change_store("photos", lambda row: {**row, "capacity_bytes": 8 << 20})


def test_edits_of_two_nodes_that_meet_are_both_made(cluster: MemoryCluster) -> None:
    """A list that both extend has what both have added: an edit is repeated after a lost race."""
    nodes = [opened(cluster.member(name)) for name in ("n1", "n2", "n3")]
    nodes[0].change(lambda d: d.with_topic(topic("t"), TopicDefinition(30)))

    def ended(number: int, d: Definitions) -> Definitions:
        known = d.topics[str(topic("t"))].settings.get("terminated", [])
        return with_settings("t", "terminated", sorted({*known, number}), d)

    with ThreadPoolExecutor(6) as pool:
        for done in [
            pool.submit(nodes[number % 3].change, partial(ended, number)) for number in range(30)
        ]:
            done.result(100)
    settings_found = nodes[0].current.topics[str(topic("t"))].settings
    assert settings_found == {"terminated": list(range(30))}


def test_of_two_nodes_that_create_a_topic_one_is_refused(cluster: MemoryCluster) -> None:
    nodes = [opened(cluster.member(name)) for name in ("n1", "n2")]
    for number in range(10):
        name = topic(f"t{number}")
        barrier = threading.Barrier(2)

        def create(
            node: CatalogDefinitions, name: TopicName = name, barrier: threading.Barrier = barrier
        ) -> str:
            barrier.wait(100)
            try:
                node.change(lambda d: d.with_new_topic(name, TopicDefinition()))
            except AlreadyDefined:
                return ""
            return node.node

        with ThreadPoolExecutor(2) as pool:
            created = sorted(pool.map(create, nodes))
        assert created[0] == ""
        assert nodes[0].current.topics[str(name)].owners == (created[1],)


@pytest.mark.parametrize("fate", [Happens.NO, Happens.LATER])
def test_an_unknown_outcome_is_reported_as_such(cluster: MemoryCluster, fate: Happens) -> None:
    member = cluster.member()
    definitions = opened(member)
    member.metastore.lose_answers(*[fate] * ANSWERS)
    with pytest.raises(LithifyError) as caught:
        definitions.change(lambda d: d.with_tenant("acme", {}))
    assert is_outcome_unknown(caught.value)


def test_definitions_are_not_changed_in_the_cluster_thread(cluster: MemoryCluster) -> None:
    member = cluster.member()
    definitions = opened(member)

    async def change() -> None:
        definitions.change(lambda d: d.with_tenant("acme", {}))

    with pytest.raises(RuntimeError, match="cluster thread"):
        member.call(change).result(100)


def test_permissions_are_the_same_objects_until_they_change(cluster: MemoryCluster) -> None:
    definitions = opened(cluster.member())
    before = definitions.current
    definitions.change(lambda d: d.with_topic(topic("a"), TopicDefinition()))
    between = definitions.current
    assert between is not before
    assert between.tenants is before.tenants
    assert between.namespaces is before.namespaces
    definitions.change(
        lambda d: d.with_namespace(PUBLIC, NamespaceDefinition({"grants": {"a": []}}))
    )
    assert definitions.current.namespaces is not before.namespaces
    assert definitions.current is definitions.current


def test_watchers_are_called_for_changes_of_all_nodes_before_a_change_returns(
    cluster: MemoryCluster,
) -> None:
    one, two = (opened(cluster.member(name)) for name in ("n1", "n2"))
    seen: list[int] = []
    one.watchers.append(lambda: seen.append(one.catalog.version))
    one.change(lambda d: d.with_tenant("acme", {}))
    assert seen == [one.catalog.version]
    told = threading.Event()
    one.watchers.append(told.set)
    two.change(lambda d: d.with_tenant("other", {}))
    assert told.wait(100)


# --- the flag `logs` --------------------------------------------------------------------------


def test_that_topics_have_had_logs_is_kept_per_node(cluster: MemoryCluster) -> None:
    one, two = (opened(cluster.member(name)) for name in ("n1", "n2"))
    one.change(lambda d: d.with_topic(topic("a"), TopicDefinition()))
    before = one.catalog.version
    one.change(lambda d: replace(d, logs=True))
    assert one.catalog.version == before
    assert one.current.logs
    assert not two.current.logs
    assert opened(cluster.member("n1")).current.logs
    after = one.change(lambda d: d.without_topic(topic("a")))
    assert not after.logs
    assert not opened(cluster.member("n1")).current.logs


def test_the_entries_of_topics_are_what_is_found_by_name(cluster: MemoryCluster) -> None:
    definitions = opened(cluster.member())
    definitions.change(lambda d: d.with_tenant("acme", {}))
    definitions.change(lambda d: d.with_namespace(SHOP, NamespaceDefinition()))
    for name, partitions in (("a", 0), ("b", 3), ("acme/shop/a", 2)):
        created = TopicDefinition(partitions, 7, {"retention_ms": 5})
        definitions.change(partial(Definitions.with_topic, name=topic(name), topic=created))
    topics = definitions.current.topics
    by_name = {name: topics[name] for name in topics}
    assert list(by_name) == list(topics.keys())
    assert dict(topics.items()) == by_name
    for name, found in topics.items():
        assert (found.id, found.owners) == (by_name[name].id, by_name[name].owners)
    assert len(topics.items()) == 3
    assert (str(topic("b")), by_name[str(topic("b"))]) in topics.items()


# --- the copy ---------------------------------------------------------------------------------


def test_the_copy_has_what_is_acknowledged_and_belongs_to_the_node(cluster: MemoryCluster) -> None:
    fs = MemoryFileSystem()
    one = opened(cluster.member("n1"), fs)
    assert read_definitions(fs, f"data/{COPY}") is None
    two = opened(cluster.member("n2"))
    two.change(lambda d: d.with_topic(topic("theirs"), TopicDefinition()))
    one.change(lambda d: d.with_topic(topic("mine"), TopicDefinition()))
    one.add_store("photos", STORE)
    copied = read_definitions(fs, f"data/{COPY}")
    assert copied is not None
    assert list(copied.topics) == [str(topic("mine"))]
    assert list(copied.stores) == ["photos"]
    one.change(lambda d: d.without_topic(topic("mine")))
    copied = read_definitions(fs, f"data/{COPY}")
    assert copied is not None
    assert not copied.topics


def test_the_copy_becomes_durable(cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    synced = threading.Event()

    def sync(fs: MemoryFileSystem, path: str) -> None:
        sync_replaced(fs, path)
        synced.set()

    monkeypatch.setattr(definitions_module, "sync_replaced", sync)
    fs = MemoryFileSystem()
    one = opened(cluster.member("n1"), fs)
    for name in ("a", "b"):
        one.change(partial(Definitions.with_topic, name=topic(name), topic=TopicDefinition()))
        assert synced.wait(30)
        synced.clear()
        copied = read_definitions(fs.crash_clone(random.Random(1)), f"data/{COPY}")
        assert copied == read_definitions(fs, f"data/{COPY}")


def copied_settings(fs: MemoryFileSystem, name: str) -> object:
    copied = read_definitions(fs, f"data/{COPY}")
    assert copied is not None
    return copied.topics[str(topic(name))].settings


def test_changed_settings_are_in_the_copy_when_the_node_is_closed(
    cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(definitions_module, "SYNC_S", 1e6)
    fs = MemoryFileSystem()
    one = opened(cluster.member("n1"), fs)
    for name in ("a", "b"):
        one.change(partial(Definitions.with_topic, name=topic(name), topic=TopicDefinition()))
    for retention_ms in (1, 2):
        one.change(partial(with_settings, "a", "retention_ms", retention_ms))
        assert copied_settings(fs, "a") == {"retention_ms": 1}, "the first, at once"
    one.close()
    assert copied_settings(fs, "a") == {"retention_ms": 2}
    one.change(partial(with_settings, "a", "retention_ms", 3))
    one.change(lambda d: d.without_topic(topic("b")))
    assert copied_settings(fs, "a") == {"retention_ms": 3}, "with what is created or deleted"


def test_changed_settings_get_into_the_copy_and_are_durable(
    cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced = threading.Event()

    def sync(fs: MemoryFileSystem, path: str) -> None:
        sync_replaced(fs, path)
        synced.set()

    fs = MemoryFileSystem()
    one = opened(cluster.member("n1"), fs)
    monkeypatch.setattr(definitions_module, "sync_replaced", sync)
    one.change(partial(Definitions.with_topic, name=topic("a"), topic=TopicDefinition()))
    assert synced.wait(30)
    for retention_ms in range(10):
        synced.clear()
        one.change(partial(with_settings, "a", "retention_ms", retention_ms))
    assert synced.wait(30)
    assert copied_settings(fs.crash_clone(random.Random(1)), "a") == {"retention_ms": 9}


def test_a_copy_that_cannot_be_written_does_not_fail_the_change(cluster: MemoryCluster) -> None:
    disk = MemoryFileSystem()
    disk.mkdir("data")
    faulty = FaultyFileSystem(disk, [Fault("mutating", nth=1, kind="EIO")])
    definitions = CatalogDefinitions(cluster.member(), faulty, "data", ignore_events)
    definitions.change(lambda d: d.with_tenant("acme", {}))
    definitions.change(lambda d: d.with_tenant("other", {}))
    copied = read_definitions(disk, f"data/{COPY}")
    assert copied is not None
    assert {"acme", "other"} <= copied.tenants.keys()


@pytest.mark.parametrize("damage", [False, True])
def test_a_copy_with_what_the_catalog_lacks_is_set_aside(*, damage: bool) -> None:
    fs = MemoryFileSystem()
    with MemoryCluster() as first:
        definitions = opened(first.member(), fs)
        definitions.change(lambda d: d.with_topic(topic("lost"), TopicDefinition(0, 1, {"a": 1})))
    if damage:
        write_atomic(fs, f"data/{COPY}", read_file(fs, f"data/{COPY}")[:-3] + b"xx\n")
    before = read_file(fs, f"data/{COPY}")
    with MemoryCluster() as second:
        again = opened(second.member(), fs)
        assert not again.current.topics
        assert not again.found
        assert not fs.exists(f"data/{COPY}")
        again.change(lambda d: d.with_topic(topic("new"), TopicDefinition()))
    assert read_file(fs, f"data/{COPY}.damaged-1") == before
    assert not fs.exists(f"data/{COPY}.damaged-2")


def test_a_copy_from_before_a_deletion_is_not_set_aside(cluster: MemoryCluster) -> None:
    fs = MemoryFileSystem()
    definitions = opened(cluster.member(), fs)
    definitions.change(lambda d: d.with_topic(topic("a"), TopicDefinition()))
    older = read_file(fs, f"data/{COPY}")
    definitions.change(lambda d: d.without_topic(topic("a")))
    write_atomic(fs, f"data/{COPY}", older)
    opened(cluster.member(), fs)
    assert not fs.exists(f"data/{COPY}.damaged-1")
    assert read_file(fs, f"data/{COPY}") != older


def test_a_restore_adds_to_the_catalog_and_changes_nothing_in_it(cluster: MemoryCluster) -> None:
    fs = MemoryFileSystem()
    definitions = opened(cluster.member(), fs)
    definitions.change(lambda d: d.with_topic(topic("a"), TopicDefinition()))
    pending = PendingDefinitions(fs, "data")
    assert pending.found
    pending.change(lambda d: d.with_topic(topic("b"), TopicDefinition()))
    with pytest.raises(InvalidInput, match="start the node"):
        pending.change(lambda d: d.without_topic(topic("a")))
    written = read_definitions(fs, "data/definitions")
    assert written is not None
    assert list(written.topics) == [str(topic("b"))]


# --- against a file ---------------------------------------------------------------------------

locals_ = st.sampled_from(["a", "b", "b-partition-1", "c"])
values = st.dictionaries(st.sampled_from("xy"), st.integers(0, 2) | st.lists(st.integers(0, 1)))


@st.composite
def edits(draw: st.DrawFn) -> Any:
    kind = draw(st.sampled_from(["tenant", "space", "topic", "store"]))
    added, held = draw(st.booleans()), draw(values)
    name = draw(locals_)
    space = draw(st.sampled_from([PUBLIC, SHOP]))
    count = draw(st.sampled_from([0, 0, 2, 3]))
    if kind == "tenant":
        return lambda d: d.with_tenant("acme", held) if added else d.without_tenant("acme")
    if kind == "space":
        new = NamespaceDefinition(held)
        return lambda d: d.with_namespace(SHOP, new) if added else d.without_namespace(SHOP)
    if kind == "store":
        row = {**STORE, "namespace": str(space)}
        return lambda d: d.with_store(name, row) if added else d.without_store(name)
    full = TopicName(space, name)
    new_topic = TopicDefinition(count, 1, held)

    def edit(d: Definitions) -> Definitions:
        known = d.topics.get(str(full))
        if not added:
            return d.without_topic(full)
        if known is None:
            return d.with_new_topic(full, new_topic)
        return d.with_topic(full, replace(known, settings=held))

    return edit


@settings(max_examples=60, deadline=None)
@given(st.lists(edits(), max_size=12))
def test_edits_give_what_they_give_of_a_file(edits: list[Any]) -> None:
    fs = MemoryFileSystem()
    fs.mkdir("file")
    file = DefinitionsFile(fs, "file/definitions")
    with MemoryCluster() as cluster:
        definitions = opened(cluster.member())
        for edit in edits:
            outcomes = []
            for each in (file, definitions):
                try:
                    each.change(edit)
                    outcomes.append("")
                except InvalidInput as error:
                    outcomes.append(f"{type(error).__name__}: {error}")
            assert outcomes[0] == outcomes[1]
            assert definitions.current == file.current
        assert opened(cluster.member()).current == file.current


def test_a_topic_that_another_command_creates_is_seen(cluster: MemoryCluster) -> None:
    definitions = opened(cluster.member())
    definitions.execute([CreateTopic("public/default", "a", owners=("n7",))])
    assert definitions.current.topics[str(topic("a"))].owners == ("n7",)
    assert definitions.catalog.directory[ObjectKind.TENANT, 0]


def test_a_topic_that_its_owner_deletes_while_it_is_looked_up_gets_no_directory(
    cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    fs = MemoryFileSystem()
    here, owner = opened(cluster.member("n1"), fs), opened(cluster.member("n2"))
    topics = Topics(
        fs,
        "data",
        settings=TopicSettings(log=LogSettings()),
        clock=ManualClock(),
        events=ignore_events,
        owner="n1",
        definitions=here,
    )
    owner.change(lambda d: d.with_topic(topic("t"), TopicDefinition(owners=("n2",))))
    check_owner = here.check_owner

    def check_after_deletion(name: TopicName) -> None:
        owner.change(lambda d: d.without_topic(name))
        check_owner(name)

    monkeypatch.setattr(here, "check_owner", check_after_deletion)
    with pytest.raises(TopicNotFound):
        topics.get("t")
    assert not fs.exists("data/topics/public/default/t")
    topics.close()
