from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from lithify.catalog.commands.blob_stores import CreateBlobStore
from lithify.catalog.commands.tenants_and_namespaces import (
    AlterNamespace,
    AlterTenant,
    CreateNamespace,
    CreateTenant,
    DropNamespace,
    DropTenant,
)
from lithify.catalog.commands.topics import CreateTopic
from lithify.catalog.errors import (
    InvalidDefinition,
    ObjectExists,
    ObjectInUse,
    ObjectNotFound,
)
from tests.catalog_stage import NODES, after, started

if TYPE_CHECKING:
    from lithify.catalog.commands.batch import CatalogCommand

TENANT = (CreateTenant("t"), CreateNamespace("t/n"))


def test_settings_are_set_and_unset_one_by_one() -> None:
    catalog = started(CreateTenant("t", {"a": 1, "b": {"x": 1, "y": 2}}))
    catalog = after(catalog, AlterTenant("t", {"c": (1, 2), "b": {"x": 3}}, ("a",)))
    tenant = catalog.tenant("t")
    assert tenant is not None
    assert tenant.settings == {"b": {"x": 3, "y": 2}, "c": [1, 2]}
    assert after(catalog, AlterTenant("t", {"c": [1, 2]}, ("zzz",))) is catalog
    catalog = after(catalog, CreateNamespace("t/n", {"a": 1}), AlterNamespace("t/n", {}, ("a",)))
    namespace = catalog.namespace("t/n")
    assert namespace is not None
    assert namespace.settings == {}


def test_true_replaces_1() -> None:
    catalog = after(started(CreateTenant("t", {"a": 1})), AlterTenant("t", {"a": True}))
    tenant = catalog.tenant("t")
    assert tenant is not None
    assert tenant.settings["a"] is True


@pytest.mark.parametrize(
    ("command", "rule"),
    [
        (CreateTenant("a/b"), "letters, digits"),
        (CreateTenant(""), "letters, digits"),
        (CreateNamespace("public"), "its name must be TENANT/NAMESPACE"),
        (CreateNamespace("public/a/b"), "letters, digits"),
        (CreateNamespace("public/.."), "letters, digits"),
        (CreateTenant("t", {"a": float("nan")}), "settings must be JSON"),
        (AlterTenant("public", {"a": b"x"}), "settings must be JSON"),
        (CreateTenant("t", {"a": "x" * 65_536}), "larger than the limit 65536"),
    ],
)
def test_wrong_definitions(command: CatalogCommand, rule: str) -> None:
    with pytest.raises(InvalidDefinition, match=rule):
        after(started(), command)


def test_a_tenant_with_namespaces_is_not_dropped() -> None:
    with pytest.raises(ObjectInUse, match="tenant t is in use: it has namespaces: t/n and 1 more"):
        after(started(*TENANT, CreateNamespace("t/m")), DropTenant("t"))


def test_a_namespace_with_topics_or_stores_is_not_dropped() -> None:
    with pytest.raises(ObjectInUse, match="topics: persistent://t/n/a"):
        after(started(*TENANT, CreateTopic("t/n", "a", nodes=NODES)), DropNamespace("t/n"))
    store = CreateBlobStore("t/n", "s", 8192, 4096, nodes=NODES)
    with pytest.raises(ObjectInUse, match="blob stores: s"):
        after(started(*TENANT, store), DropNamespace("t/n"))


def test_empty_ones_are_dropped() -> None:
    catalog = after(started(*TENANT), DropNamespace("t/n"), DropTenant("t"))
    assert catalog.tenant("t") is None
    assert not catalog.removals()


def test_cascade_deletes_what_is_inside() -> None:
    catalog = started(
        *TENANT,
        CreateTopic("t/n", "a", 2, nodes=NODES),
        CreateBlobStore("t/n", "s", 8192, 4096, owner="n3"),
    )
    catalog = after(catalog, DropTenant("t", cascade=True))
    assert (catalog.tenant("t"), catalog.namespace("t/n"), catalog.store("s")) == (None,) * 3
    assert [(each.name, each.nodes) for each in catalog.removals()] == [
        ("persistent://t/n/a", ("n1",)),
        ("s", ("n3",)),
    ]


def test_names_that_exist_and_that_do_not() -> None:
    catalog = started()
    for create in (CreateTenant("public"), CreateNamespace("public/default")):
        with pytest.raises(ObjectExists):
            after(catalog, create)
    missing: tuple[CatalogCommand, ...] = (
        AlterTenant("x"),
        DropTenant("x"),
        AlterNamespace("x/y"),
        DropNamespace("public/y"),
        CreateNamespace("x/y"),
    )
    for command in missing:
        with pytest.raises(ObjectNotFound, match=r"x|public/y"):
            after(catalog, command)
    quiet: tuple[CatalogCommand, ...] = (
        CreateTenant("public", if_not_exists=True),
        CreateNamespace("public/default", if_not_exists=True),
        AlterTenant("x", if_exists=True),
        DropTenant("x", if_exists=True),
        AlterNamespace("x/y", if_exists=True),
        DropNamespace("x/y", if_exists=True),
    )
    assert after(catalog, *quiet) is catalog
