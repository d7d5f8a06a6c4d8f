"""Indexes are compared with the rows of their table, whatever differs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from lithify.catalog.errors import ObjectNotFound
from lithify.catalog.objects import IndexDescriptor, IndexStatus
from lithify.compaction.tasks.jobs import LocalJobs
from lithify.spark.tables import index_check
from lithify.spark.tables.index_check import IndexCheck, check_index
from lithify.spark.tables.node_scan import ScanMoment
from lithify.spark.tables.table_parts import TablePart
from lithify.tables.errors import IndexNotAvailable
from lithify.tables.keys import index_entry_key, primary_key, row_key
from lithify.tables.rows import encode_row
from tests.property.test_table_rows import small_table

if TYPE_CHECKING:
    from collections.abc import Iterator

TABLE = small_table(("k", "int32"), ("n", "string"), key="k")
INDEX = IndexDescriptor(9, TABLE.id, "by_n", (2,), status=IndexStatus.AVAILABLE)
UNIQUE = IndexDescriptor(9, TABLE.id, "by_n", (2,), unique=True, status=IndexStatus.AVAILABLE)
ROWS: list[dict[str, Any]] = [
    {"k": number, "n": f"n{number}" if number % 4 else None} for number in range(40)
]


class Stored:
    """Two partitions with rows and entries; also a query that plans them."""

    def __init__(self, index: IndexDescriptor) -> None:
        self.index = index
        self.partitions: list[dict[bytes, bytes]] = [{}, {}]
        self.large: bool | None = None
        for row in ROWS:
            value = primary_key(TABLE, row) if index.unique else b""
            own = self.partitions[row["k"] % 2]
            own[row_key(TABLE, row)] = encode_row(TABLE, row)
            own[index_entry_key(TABLE, index, row)] = value

    def plan(self, *, split: bool) -> tuple[ScanMoment, list[TablePart]]:
        assert not split
        low, high = TABLE.id.to_bytes(4, "big"), (TABLE.id + 1).to_bytes(4, "big")
        parts = [TablePart(TABLE, number, 1, None, low, high, 0, None) for number in (0, 1)]
        return ScanMoment(0, 1, TABLE, (self.index,), 2), parts

    def read(
        self, part: TablePart, low: bytes, high: bytes, *, with_keys: bool = False
    ) -> Iterator[Any]:
        own = self.partitions[part.number]
        keys = [key for key in own if low <= key < high]
        for at in range(0, len(keys), 7):
            some = keys[at : at + 7]
            data = np.frombuffer(b"".join(own[key] for key in some), np.uint8)
            stops = np.cumsum([len(own[key]) for key in some], dtype=np.int64)
            yield (some if with_keys else None), data, stops

    def check(self, name: str = "by_n") -> IndexCheck:
        def jobs(is_large: bool) -> LocalJobs:
            self.large = is_large
            return LocalJobs()

        return check_index(self, name, jobs)  # type: ignore[arg-type]


@pytest.fixture(params=[INDEX, UNIQUE], ids=["plain", "unique"])
def stored(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Stored:
    made = Stored(request.param)
    monkeypatch.setattr(index_check, "read_stored", made.read)
    return made


def test_an_index_with_the_entries_of_all_rows_is_equal(stored: Stored) -> None:
    assert stored.check() == IndexCheck(40, 40)
    assert stored.large is False


@pytest.mark.parametrize("together", [1000, 3])
def test_differences_are_counted_and_named(
    stored: Stored, monkeypatch: pytest.MonkeyPatch, together: int
) -> None:
    monkeypatch.setattr(index_check, "ROUND_ENTRIES", together)
    even = stored.partitions[0]
    del even[index_entry_key(TABLE, stored.index, ROWS[4])]
    even[index_entry_key(TABLE, stored.index, {"k": 100, "n": "none"})] = b""
    found = stored.check()
    assert (found.rows, found.entries, found.missing, found.superfluous) == (40, 40, 1, 1)
    assert found.examples[0] == "missing: the entry of row {'k': 4}"
    assert found.examples[1].startswith("superfluous: entry 00000009")


def test_a_unique_entry_of_another_row_is_a_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    stored = Stored(UNIQUE)
    monkeypatch.setattr(index_check, "read_stored", stored.read)
    entry = index_entry_key(TABLE, UNIQUE, ROWS[3])
    stored.partitions[1][entry] = primary_key(TABLE, ROWS[5])
    assert stored.check().differences == 2


def test_only_available_indexes_are_compared(stored: Stored) -> None:
    with pytest.raises(ObjectNotFound):
        stored.check("other")
    stored.index = IndexDescriptor(9, TABLE.id, "by_n", (2,), status=IndexStatus.BUILDING)
    with pytest.raises(IndexNotAvailable):
        stored.check()
