from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from lithify.catalog.commands.indexes import (
    CreateIndex,
    DropIndex,
    MakeIndexAvailable,
    RemoveIndex,
    StartBuildingIndex,
)
from lithify.catalog.errors import (
    InvalidDefinition,
    ObjectExists,
    ObjectNotFound,
    WrongIndexStatus,
)
from lithify.catalog.objects import IndexDescriptor, IndexStatus
from lithify.exit_codes import CONFLICT
from tests.catalog_stage import PEOPLE, after, started

if TYPE_CHECKING:
    from lithify.catalog.catalog import Catalog

STATUSES = tuple(IndexStatus)


def index_in(status: IndexStatus) -> tuple[Catalog, int]:
    """A catalog whose index `i` has the status."""
    catalog = after(started(PEOPLE), CreateIndex("people", "i", ("age",)))
    index_id = catalog.next_id - 1
    steps = StartBuildingIndex(index_id), MakeIndexAvailable(index_id), DropIndex("people", "i")
    for step in steps[: STATUSES.index(status)]:
        catalog = after(catalog, step)
    return catalog, index_id


def status(catalog: Catalog, index_id: int) -> IndexStatus | None:
    found = catalog.find(IndexDescriptor, index_id)
    return found.status if found is not None else None


@pytest.mark.parametrize("before", STATUSES)
@pytest.mark.parametrize("step", [StartBuildingIndex, MakeIndexAvailable, RemoveIndex])
def test_only_the_next_status_follows(
    before: IndexStatus,
    step: type[StartBuildingIndex | MakeIndexAvailable | RemoveIndex],
) -> None:
    catalog, index_id = index_in(before)
    assert status(catalog, index_id) is before
    legal = {
        (IndexStatus.REGISTERED, StartBuildingIndex): IndexStatus.BUILDING,
        (IndexStatus.BUILDING, MakeIndexAvailable): IndexStatus.AVAILABLE,
        (IndexStatus.STOPPING, RemoveIndex): None,
    }
    if (before, step) in legal:
        assert status(after(catalog, step(index_id)), index_id) is legal[before, step]
        return
    with pytest.raises(WrongIndexStatus, match=f"index {index_id} is {before}") as found:
        after(catalog, step(index_id))
    assert found.value.actual == before
    assert found.value.expected != before
    assert found.value.exit_code == CONFLICT


@pytest.mark.parametrize("before", STATUSES)
def test_a_drop_stops_an_available_index_and_removes_one_before(before: IndexStatus) -> None:
    catalog, index_id = index_in(before)
    if before is IndexStatus.STOPPING:
        with pytest.raises(ObjectNotFound, match=r"index people\.i"):
            after(catalog, DropIndex("people", "i"))
        return
    dropped = after(catalog, DropIndex("people", "i"))
    available = before is IndexStatus.AVAILABLE
    assert status(dropped, index_id) is (IndexStatus.STOPPING if available else None)


def test_an_index_of_a_new_table_is_available() -> None:
    catalog = started(PEOPLE, CreateIndex("people", "i", ("age",)))
    assert status(catalog, catalog.next_id - 1) is IndexStatus.AVAILABLE


def test_a_unique_index_contains_the_partition_key() -> None:
    catalog = started(PEOPLE)
    with pytest.raises(InvalidDefinition, match="must contain the partition key"):
        after(catalog, CreateIndex("people", "i", ("age",), unique=True))
    made = after(catalog, CreateIndex("people", "i", ("age", "town"), unique=True))
    index = made.get(IndexDescriptor, made.next_id - 1)
    assert (index.columns, index.unique) == ((3, 2), True)


@pytest.mark.parametrize(
    ("index", "rule"),
    [
        (CreateIndex("people", "a b", ("age",)), "letters, digits"),
        (CreateIndex("people", "i", ()), "it names no column"),
        (CreateIndex("people", "i", ("x",)), "the table has no column x"),
        (CreateIndex("people", "i", ("age", "age")), "it names a column twice"),
    ],
)
def test_wrong_indexes(index: CreateIndex, rule: str) -> None:
    with pytest.raises(InvalidDefinition, match=rule):
        after(started(PEOPLE), index)


def test_names_that_exist_and_that_do_not() -> None:
    catalog = started(PEOPLE, CreateIndex("people", "i", ("age",)))
    with pytest.raises(ObjectExists, match=r"index people\.i"):
        after(catalog, CreateIndex("people", "i", ("id",)))
    for command in (CreateIndex("x", "i", ("id",)), DropIndex("x", "i"), DropIndex("people", "x")):
        with pytest.raises(ObjectNotFound, match="x"):
            after(catalog, command)
    for step in (StartBuildingIndex(99), MakeIndexAvailable(99), RemoveIndex(99)):
        with pytest.raises(ObjectNotFound, match="index 99"):
            after(catalog, step)
    quiet = CreateIndex("people", "i", ("id",), if_not_exists=True)
    assert after(catalog, quiet, DropIndex("people", "x", if_exists=True)) is catalog
