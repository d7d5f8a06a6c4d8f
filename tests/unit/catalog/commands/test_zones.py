from __future__ import annotations

import pytest

from lithify.catalog.commands.topics import CreateTopic
from lithify.catalog.commands.zones import AlterZone, CreateZone, DropZone, SetDefaultZone
from lithify.catalog.errors import (
    InvalidDefinition,
    ObjectExists,
    ObjectInUse,
    ObjectNotFound,
)
from lithify.exit_codes import CONFLICT, NOT_FOUND, USAGE
from tests.catalog_stage import NODES, PEOPLE, after, started


def test_a_zone_is_created_changed_and_dropped() -> None:
    catalog = after(started(), CreateZone("z", 4, 3))
    zone = catalog.zone("z")
    assert zone is not None
    assert (zone.partitions, zone.replicas) == (4, 3)
    catalog = after(catalog, AlterZone("z", replicas=5))
    zone = catalog.zone("z")
    assert zone is not None
    assert (zone.partitions, zone.replicas) == (4, 5)
    assert after(catalog, AlterZone("z", 4, 5)) is catalog
    assert after(catalog, DropZone("z")).zone("z") is None


@pytest.mark.parametrize(
    ("zone", "rule"),
    [
        (CreateZone("z", 0), "partitions is 0, must be 1 to 65000"),
        (CreateZone("z", 65_001), "partitions is 65001"),
        (CreateZone("z", True), "partitions is True"),
        (CreateZone("z", 1, 65), "replicas is 65, must be 1 to 64"),
        (CreateZone("a b"), "letters, digits"),
        (AlterZone("default", replicas=0), "replicas is 0"),
    ],
)
def test_a_wrong_zone(zone: CreateZone | AlterZone, rule: str) -> None:
    with pytest.raises(InvalidDefinition, match=rule) as found:
        after(started(), zone)
    assert found.value.exit_code == USAGE


def test_the_default_zone_and_used_ones_are_not_dropped() -> None:
    catalog = started(CreateZone("z"), CreateTopic("public/default", "a", zone="z", nodes=NODES))
    with pytest.raises(ObjectInUse, match="zone default is in use: it is the default zone"):
        after(catalog, DropZone("default"))
    with pytest.raises(ObjectInUse, match="objects: persistent://public/default/a") as found:
        after(catalog, DropZone("z"))
    assert found.value.exit_code == CONFLICT


def test_partitions_are_fixed_while_there_are_tables() -> None:
    catalog = started(PEOPLE)
    with pytest.raises(ObjectInUse, match="its partitions are fixed: people"):
        after(catalog, AlterZone("default", 99))
    assert after(catalog, AlterZone("default", replicas=2)) is not catalog


def test_another_zone_is_the_default_one() -> None:
    catalog = after(started(), CreateZone("z"), SetDefaultZone("z"))
    assert catalog.default_zone == catalog.zone("z")
    assert after(catalog, SetDefaultZone("z")) is catalog
    assert after(catalog, DropZone("default")).zone("default") is None


def test_names_that_exist_and_that_do_not() -> None:
    catalog = started()
    with pytest.raises(ObjectExists):
        after(catalog, CreateZone("default"))
    for command in (AlterZone("z"), DropZone("z"), SetDefaultZone("z")):
        with pytest.raises(ObjectNotFound, match="zone z does not exist") as found:
            after(catalog, command)
        assert found.value.exit_code == NOT_FOUND
    quiet = (
        CreateZone("default", if_not_exists=True),
        AlterZone("z", if_exists=True),
        DropZone("z", if_exists=True),
    )
    assert after(catalog, *quiet) is catalog
