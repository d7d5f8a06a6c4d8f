"""Tenants, namespaces and topics as one value, and the file that keeps it."""

from __future__ import annotations

import pytest

from lithify.errors import DamagedFile, InvalidInput, UnsupportedVersion
from lithify.fs import MemoryFileSystem, read_file, write_atomic
from lithify.fs.checked_lines import encode_line
from lithify.topics.definitions.definitions import (
    AlreadyDefined,
    Definitions,
    NamespaceDefinition,
    NotDefined,
    NotEmpty,
    TopicDefinition,
)
from lithify.topics.definitions.definitions_file import (
    COPY,
    DEFINITIONS,
    DefinitionsFile,
    read_definitions_in,
    write_definitions,
)
from lithify.topics.definitions.topic_names import Namespace, TopicName

ORDERS = TopicName.parse("persistent://acme/shop/orders")
SHOP = Namespace("acme", "shop")


def shop() -> Definitions:
    return (
        Definitions.initial()
        .with_tenant("acme", {"admins": ["ann"]})
        .with_namespace(SHOP, NamespaceDefinition())
    )


def test_a_new_node_has_the_default_namespace() -> None:
    first = Definitions.initial()
    assert list(first.tenants) == ["public"]
    assert first.namespaces_of("public") == [Namespace("public", "default")]
    assert first.topics_of(Namespace("public", "default")) == []


def test_each_change_is_a_new_value_and_the_old_one_stays() -> None:
    before = shop()
    after = before.with_topic(ORDERS, TopicDefinition(3))
    assert before.topics == {}
    assert after.topics_of(SHOP) == [ORDERS]
    assert after.without_topic(ORDERS) == before


def test_settings_are_replaced_by_defining_again() -> None:
    changed = shop().with_tenant("acme", {"admins": []})
    assert changed.tenant("acme") == {"admins": []}
    changed = changed.with_namespace(SHOP, NamespaceDefinition({"message_ttl_seconds": 5}))
    assert changed.namespace(SHOP).settings == {"message_ttl_seconds": 5}
    assert changed.namespaces_of("acme") == [SHOP]


def test_nothing_is_defined_in_a_missing_tenant_or_namespace() -> None:
    first = Definitions.initial()
    with pytest.raises(NotDefined, match="tenant acme does not exist"):
        first.with_namespace(SHOP, NamespaceDefinition())
    with pytest.raises(NotDefined, match="namespace acme/shop does not exist"):
        first.with_topic(ORDERS, TopicDefinition())
    with pytest.raises(NotDefined, match="tenant acme"):
        first.without_tenant("acme")
    with pytest.raises(NotDefined, match="namespace acme/shop"):
        first.without_namespace(SHOP)
    with pytest.raises(NotDefined, match="namespace acme/shop"):
        first.namespace(SHOP)


def test_a_tenant_or_namespace_in_use_is_not_removed() -> None:
    full = shop().with_topic(ORDERS, TopicDefinition())
    with pytest.raises(NotEmpty, match="acme has namespaces: acme/shop and 0 more"):
        full.without_tenant("acme")
    with pytest.raises(NotEmpty, match="has topics: persistent://acme/shop/orders and 0 more"):
        full.without_namespace(SHOP)
    empty = full.without_topic(ORDERS).without_namespace(SHOP).without_tenant("acme")
    assert empty == Definitions.initial()


@pytest.mark.parametrize("name", ["", "..", "a/b", "a b", "x" * 201])
def test_a_tenant_has_a_name_that_can_be_a_directory(name: str) -> None:
    with pytest.raises(InvalidInput, match="tenant"):
        Definitions.initial().with_tenant(name, {})


def test_the_file_is_read_as_it_was_written() -> None:
    fs = MemoryFileSystem()
    fs.mkdir("data")
    file = DefinitionsFile(fs, "data/definitions")
    assert file.current == Definitions.initial()
    full = file.change(lambda _: shop().with_topic(ORDERS, TopicDefinition(3, 17, {"a": [1]})))
    assert DefinitionsFile(fs, "data/definitions").current == full


def test_a_refused_change_changes_nothing() -> None:
    fs = MemoryFileSystem()
    fs.mkdir("data")
    file = DefinitionsFile(fs, "data/definitions")
    file.change(lambda _: shop())
    with pytest.raises(NotEmpty):
        file.change(lambda d: d.without_tenant("acme"))
    assert file.current == shop()
    assert DefinitionsFile(fs, "data/definitions").current == shop()


def test_a_damaged_file_is_not_read_as_an_empty_one() -> None:
    fs = MemoryFileSystem()
    fs.mkdir("data")
    DefinitionsFile(fs, "data/definitions").change(lambda _: shop())
    data = bytearray(read_file(fs, "data/definitions"))
    data[len(data) // 2] ^= 1
    write_atomic(fs, "data/definitions", bytes(data))
    with pytest.raises(DamagedFile):
        DefinitionsFile(fs, "data/definitions")


def test_a_newer_version_is_refused_and_not_changed() -> None:
    fs = MemoryFileSystem()
    fs.mkdir("/node")
    newer = encode_line('{"version":3,"tenants":{},"namespaces":{},"topics":{}}')
    write_atomic(fs, "/node/definitions", newer)
    with pytest.raises(UnsupportedVersion, match="version 3, this build reads up to 2"):
        DefinitionsFile(fs, "/node/definitions")
    assert read_file(fs, "/node/definitions") == newer


def test_neither_a_topic_nor_one_of_its_partitions_is_defined_twice() -> None:
    parts = shop().with_new_topic(ORDERS, TopicDefinition(3))
    for name, count in ((ORDERS, 0), (ORDERS.partition_name(2), 0)):
        with pytest.raises(AlreadyDefined, match="exists already"):
            parts.with_new_topic(name, TopicDefinition(count))
    other = parts.with_new_topic(ORDERS.partition_name(3), TopicDefinition())
    assert other.defines(ORDERS.partition_name(3))
    taken = shop().with_new_topic(ORDERS.partition_name(1), TopicDefinition())
    with pytest.raises(AlreadyDefined, match="orders-partition-1 exists"):
        taken.with_new_topic(ORDERS, TopicDefinition(3))


def test_ids_and_owners_are_neither_compared_nor_written() -> None:
    placed = shop().with_topic(ORDERS, TopicDefinition(2, 5, {}, 17, ("n1", "n2")))
    assert placed == shop().with_topic(ORDERS, TopicDefinition(2, 5))
    assert "n1" not in placed.to_json()


def test_other_processes_read_the_copy_until_there_is_a_file_and_both_together() -> None:
    fs = MemoryFileSystem()
    fs.mkdir("data")
    assert read_definitions_in(fs, "data") is None
    write_definitions(fs, f"data/{COPY}", shop().with_topic(ORDERS, TopicDefinition(3)))
    assert read_definitions_in(fs, "data") == shop().with_topic(ORDERS, TopicDefinition(3))
    restored = TopicName.parse("restored")
    more = Definitions.initial().with_topic(restored, TopicDefinition())
    write_definitions(fs, f"data/{DEFINITIONS}", more)
    found = read_definitions_in(fs, "data")
    assert found is not None
    assert found.defines(restored)
    assert found.defines(ORDERS)
