from __future__ import annotations

from dataclasses import replace

import pytest

from lithify.catalog.commands.blob_stores import (
    AlterBlobStore,
    CreateBlobStore,
    DropBlobStore,
)
from lithify.catalog.commands.tenants_and_namespaces import CreateNamespace
from lithify.catalog.errors import InvalidDefinition, ObjectExists, ObjectNotFound
from lithify.catalog.objects import ObjectKind
from tests.catalog_stage import NODES, after, started

STORE = CreateBlobStore("public/default", "s", 8192, 4096, {"policy": "all"}, nodes=NODES)


def test_a_store_has_an_owner_and_a_shape() -> None:
    store = started(STORE).store("s")
    assert store is not None
    assert (store.owner, store.capacity_bytes, store.segment_bytes) == ("n1", 8192, 4096)
    store = started(replace(STORE, owner="n7", created_ms=3)).store("s")
    assert store is not None
    assert (store.owner, store.created_ms) == ("n7", 3)


@pytest.mark.parametrize(
    ("store", "rule"),
    [
        (replace(STORE, name="a/b"), "letters, digits"),
        (replace(STORE, capacity_bytes=8191), "must be a multiple of segment_bytes, 4096"),
        (replace(STORE, capacity_bytes=0), "capacity_bytes is 0"),
        (replace(STORE, segment_bytes=-1), "segment_bytes is -1"),
        (replace(STORE, segment_bytes=2**51), "segment_bytes is"),
        (replace(STORE, nodes=()), "no owner is given"),
        (replace(STORE, owner="-"), "member name"),
    ],
)
def test_wrong_stores(store: CreateBlobStore, rule: str) -> None:
    with pytest.raises(InvalidDefinition, match=rule):
        after(started(), store)


def test_a_name_is_unique_in_all_namespaces() -> None:
    catalog = started(STORE, CreateNamespace("public/other"))
    with pytest.raises(ObjectExists, match="store s exists already"):
        after(catalog, replace(STORE, namespace="public/other"))


def test_settings_are_changed() -> None:
    catalog = after(started(STORE), AlterBlobStore("s", {"every_ms": 5}, ("policy",)))
    store = catalog.store("s")
    assert store is not None
    assert store.settings == {"every_ms": 5}


def test_a_deleted_store_is_a_removal() -> None:
    catalog = after(started(STORE), DropBlobStore("s"))
    (removal,) = catalog.removals()
    assert (removal.of, removal.name, removal.nodes) == (ObjectKind.STORE, "s", ("n1",))
    again = after(catalog, STORE)
    store = again.store("s")
    assert store is not None
    assert store.id != removal.id
    assert again.removals() == [removal]


def test_names_that_exist_and_that_do_not() -> None:
    catalog = started(STORE)
    for command in (AlterBlobStore("x"), DropBlobStore("x")):
        with pytest.raises(ObjectNotFound, match="store x"):
            after(catalog, command)
    with pytest.raises(ObjectNotFound, match="namespace x/y"):
        after(catalog, replace(STORE, name="x", namespace="x/y"))
    quiet = (
        replace(STORE, if_not_exists=True),
        AlterBlobStore("x", if_exists=True),
        DropBlobStore("x", if_exists=True),
    )
    assert after(catalog, *quiet) is catalog
