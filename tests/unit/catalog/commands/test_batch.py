from __future__ import annotations

import pytest

from lithify.catalog.catalog import Catalog
from lithify.catalog.changes import PutObject, SetNextId
from lithify.catalog.commands.batch import plan_batch
from lithify.catalog.commands.initial import initial_commands
from lithify.catalog.commands.tenants_and_namespaces import (
    AlterTenant,
    CreateNamespace,
    CreateTenant,
    DropTenant,
)
from lithify.catalog.errors import ObjectExists
from lithify.catalog.objects import TenantDescriptor
from lithify.hybrid_time import timestamp
from tests.catalog_stage import started


def test_a_batch_is_one_update_of_the_next_version() -> None:
    catalog = started()
    planned = plan_batch(catalog, [CreateTenant("a"), CreateTenant("b")], 250)
    assert planned is not None
    assert (planned.update.version, planned.update.delay_ms) == (2, 250)
    assert planned.update.changes == (
        PutObject(TenantDescriptor(4, "a")),
        PutObject(TenantDescriptor(5, "b")),
        SetNextId(6),
    )
    assert catalog.tenant("a") is None


def test_a_command_sees_those_before_it() -> None:
    planned = plan_batch(
        started(), [CreateTenant("a"), CreateNamespace("a/b"), DropTenant("x", if_exists=True)]
    )
    assert planned is not None
    assert planned.applied == (True, True, False)
    assert planned.catalog.namespace("a/b") is not None


def test_a_batch_without_effect_is_no_update() -> None:
    catalog = started()
    assert plan_batch(catalog, []) is None
    assert plan_batch(catalog, initial_commands()) is None
    assert plan_batch(catalog, [AlterTenant("public", {}), DropTenant("x", if_exists=True)]) is None


def test_a_wrong_command_ends_the_batch() -> None:
    catalog = started()
    with pytest.raises(ObjectExists, match="tenant a exists already"):
        plan_batch(catalog, [CreateTenant("a"), CreateTenant("a")])
    assert catalog.tenant("a") is None
    assert catalog.next_id == 4


def test_the_plan_is_what_the_update_makes() -> None:
    planned = plan_batch(Catalog(), initial_commands())
    assert planned is not None
    made = Catalog().with_update(planned.update, timestamp(1000))
    assert made.next_id == planned.catalog.next_id == 4
    assert sorted(made.objects) == sorted(planned.catalog.objects)
    assert made.directory == planned.catalog.directory
    assert made.default_zone_id == planned.catalog.default_zone_id == 1


def test_ids_are_not_used_again() -> None:
    catalog = started(CreateTenant("a"))
    planned = plan_batch(catalog, [DropTenant("a"), CreateTenant("a")])
    assert planned is not None
    tenant = planned.catalog.tenant("a")
    assert tenant is not None
    assert tenant.id == 5
