"""Tables as DataFrames: one moment of all partitions, from a node and from its directory."""

from __future__ import annotations

import json
import signal
import urllib.request
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql.pandas.types import to_arrow_schema

from lithify.compaction.tasks.jobs import LocalJobs
from lithify.errors import InvalidInput
from lithify.metastore import bulk_read
from lithify.pipeline.jobs import SparkJobs
from lithify.spark.place import NodeRefused
from lithify.spark.source import is_table
from lithify.spark.tables import table_parts
from lithify.spark.tables.arrow_columns import spark_schema
from lithify.spark.tables.index_check import check_index
from lithify.spark.tables.table_parts import ScanStale, TablePart, read_part
from lithify.spark.tables.table_query import TableQuery
from tests.cli.nodes import Served
from tests.patience import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from lithify.compaction.tasks.jobs import Jobs
    from lithify.tables.partition_files import PartitionFiles

ORDERS = {
    "name": "orders",
    "columns": [
        {"name": "customer", "type": "int32"},
        {"name": "id", "type": "int64"},
        {"name": "note", "type": "string", "nullable": True},
        {"name": "price", "type": "decimal(10,2)", "default": "1.50"},
    ],
    "key": ["customer", "id"],
    "partition_key": ["customer"],
    "zone": "z",
}
ROWS = [
    {"customer": number % 5, "id": number, "note": f"é {number}" if number % 3 else None}
    for number in range(60)
]


class Node:
    """A node with a table, in a process of its own."""

    def __init__(self, data: Path) -> None:
        self.data = data
        self.served = Served(data)
        self.call("POST", "/catalog/apply", b"[zones.z]\npartitions = 3\n", "application/toml")
        self.call("POST", "/tables", json.dumps(ORDERS).encode())
        self.put(*ROWS)

    @property
    def path(self) -> str:
        return f"{self.served.http}/tables/orders"

    def call(
        self, method: str, path: str, body: bytes | None = None, kind: str = "application/json"
    ) -> Any:
        url, headers = f"{self.served.http}{path}", {"Content-Type": kind}
        with urllib.request.urlopen(
            urllib.request.Request(url, body, headers, method=method)
        ) as answer:
            return json.loads(answer.read() or b"null")

    def put(self, *rows: dict[str, Any]) -> None:
        lines = "\n".join(map(json.dumps, rows)).encode()
        self.call("POST", "/tables/orders/rows", lines, "application/x-ndjson")

    def pins(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.call("GET", "/catalog/pins")
        return found

    def now(self) -> str:
        return str(self.call("GET", "/tables/orders/rows?limit=1")["timestamp"])


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    opened = Node(tmp_path_factory.mktemp("node") / "data")
    yield opened
    opened.served.close()


def load(spark: SparkSession, path: str, **options: str) -> DataFrame:
    return spark.read.format("lithify").options(**options).load(path)


def ids(frame: DataFrame) -> list[int]:
    return sorted(row.id for row in frame.collect())


def planned(path: str, **options: str) -> tuple[pa.Schema, list[TablePart]]:
    moment, parts = TableQuery.of({"path": path, **options}).plan()
    return to_arrow_schema(spark_schema(moment.table), timezone="UTC"), parts


def rows_of(schema: pa.Schema, parts: Sequence[TablePart]) -> list[dict[str, Any]]:
    found = [
        row for part in parts for batch in read_part(part, schema) for row in batch.to_pylist()
    ]
    return sorted(found, key=lambda row: (row["customer"], row["id"]))


def expected(*rows: dict[str, Any]) -> list[tuple[Any, ...]]:
    return sorted((row["customer"], row["id"], row["note"]) for row in rows)


def shown(rows: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return [(row["customer"], row["id"], row["note"]) for row in rows]


def test_a_table_is_read_at_one_moment_and_its_hold_is_released(
    spark: SparkSession, node: Node
) -> None:
    now = node.now()
    late = {"customer": 1, "id": 1000, "note": "late"}
    node.put(late)
    frame = load(spark, node.path)
    assert frame.dtypes == [
        ("customer", "int"),
        ("id", "bigint"),
        ("note", "string"),
        ("price", "decimal(10,2)"),
    ]
    found = [row.asDict() for row in frame.collect()]
    rows = sorted(found, key=lambda row: (row["customer"], row["id"]))
    assert shown(rows) == expected(*ROWS, late)
    assert {str(row["price"]) for row in rows} == {"1.50"}
    assert node.pins() == [], "released with the last part"
    then = load(spark, node.path, timestamp=now, columns="id", prefix='{"customer": 1}')
    assert then.columns == ["id"]
    assert ids(then) == [row["id"] for row in ROWS if row["customer"] == 1]
    assert then.where("id < 20").count() == 4
    assert node.pins() == []


def test_a_version_is_read_with_its_columns(spark: SparkSession, node: Node) -> None:
    version = node.call("GET", "/catalog")["version"]
    added = {"add": [{"name": "extra", "type": "uuid", "nullable": True}]}
    node.call("POST", "/tables/orders/columns", json.dumps(added).encode())
    assert "extra" not in load(spark, node.path, version=str(version)).columns
    assert load(spark, node.path).columns[-1] == "extra"


def test_invalid_queries_are_refused_by_name(spark: SparkSession, node: Node) -> None:
    for options, reason in (
        ({"view": "log"}, "a table has no option 'view'"),
        ({"version": "1", "timestamp": "2026-01-01"}, "not at both"),
        ({"version": "x"}, "must be a version"),
        ({"prefix": "[]"}, "must be a JSON object"),
        ({"timestamp": "noon"}, "timestamp 'noon' must be a time"),
    ):
        with pytest.raises(InvalidInput, match=reason):
            TableQuery.of({"path": node.path, **options})
    with pytest.raises(AnalysisException, match="there is no column 'colour'"):
        load(spark, node.path, columns="colour").count()
    with pytest.raises(InvalidInput, match="first columns of its key"):
        planned(node.path, prefix='{"id": 1}')
    with pytest.raises(NodeRefused, match="table none does not exist"):
        planned(node.path.replace("orders", "none"))
    with pytest.raises(NodeRefused, match="low watermark"):
        planned(node.path, timestamp="2020-01-01")
    with pytest.raises(InvalidInput, match="use the address of the node"):
        planned(f"{node.data}/tables/orders")
    assert node.pins() == []
    with pytest.raises(PySparkException, match="is a table: it cannot be written to"):
        spark.range(1).write.format("lithify").mode("append").save(node.path)
    assert not is_table("/data/topics/public/tables/orders")


def test_partitions_that_are_elsewhere_come_in_pages(node: Node) -> None:
    schema, parts = planned(node.path)
    direct = rows_of(schema, parts)
    assert len(direct) >= len(ROWS)
    schema, parts = planned(node.path)
    assert len({part.number for part in parts}) > 1
    assert rows_of(schema, [replace(part, files=None) for part in parts]) == direct
    assert node.pins() == []


def test_large_partitions_are_split_by_key_ranges(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    schema, parts = planned(node.path)
    whole = rows_of(schema, parts)
    monkeypatch.setattr(table_parts, "SPLIT_BYTES", 0)
    monkeypatch.setattr(table_parts, "PART_ROWS", 7)
    schema, parts = planned(node.path)
    assert len(parts) > 6
    sizes = [len(rows_of(schema, [part])) for part in parts]
    assert max(sizes) <= 8
    assert sum(sizes) == len(whole)
    schema, parts = planned(node.path, prefix='{"customer": 2}')
    assert rows_of(schema, parts) == [row for row in whole if row["customer"] == 2]


def test_files_that_were_deleted_during_a_read_are_found_again_at_the_node(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    schema, parts = planned(node.path)
    whole = rows_of(schema, parts)
    schema, parts = planned(node.path)
    left = [2]

    def failing(*given: Any) -> Iterator[Any]:
        for batch in bulk_read.read_values(*given):
            yield batch
            if left[0]:
                left[0] -= 1
                raise FileNotFoundError

    monkeypatch.setattr(table_parts, "read_values", failing)
    assert rows_of(schema, parts) == whole
    assert left == [0]


def test_files_of_another_machine_than_that_of_the_task_come_in_pages(node: Node) -> None:
    schema, parts = planned(node.path)
    whole = rows_of(schema, parts)
    schema, parts = planned(node.path)
    found = []
    for part in parts:
        assert part.scan is not None
        with pytest.MonkeyPatch.context() as patch:
            elsewhere = gone(part.files)
            patch.setattr(type(part.scan), "files", lambda *_, same=elsewhere: (1, same))
            found += rows_of(schema, [replace(part, files=elsewhere)])
    assert sorted(found, key=lambda row: (row["customer"], row["id"])) == whole


def test_a_hold_that_has_ended_is_taken_again(node: Node) -> None:
    schema, parts = planned(node.path)
    (scan,) = {part.scan for part in parts}
    assert scan is not None
    assert [pin["name"] for pin in node.pins()] == [f"scan-{scan.name}"]
    scan.release()
    assert node.pins() == []
    assert len(rows_of(schema, parts)) >= len(ROWS)


def test_an_index_is_compared_with_its_rows_in_the_process_and_as_spark_jobs(
    spark: SparkSession, node: Node
) -> None:
    node.call("PUT", "/tables/orders/indexes/by_note", b'{"columns": ["note"]}')

    def is_built() -> bool:
        (index,) = node.call("GET", "/tables/orders")["indexes"]
        return bool(index["status"] == "available")

    wait_until(is_built)
    query = TableQuery.of({"path": node.path})
    both: tuple[Jobs, ...] = (LocalJobs(), SparkJobs(spark, small_weight=0))
    for jobs in both:

        def jobs_of(_: bool, jobs: Jobs = jobs) -> Jobs:
            return jobs

        checked = check_index(query, "by_note", jobs_of)
        assert checked.rows == checked.entries >= len(ROWS)
        assert checked.differences == 0
    assert node.pins() == []


def gone(files: PartitionFiles | None) -> PartitionFiles:
    assert files is not None
    return replace(files, snapshot=f"{files.snapshot}.gone")


def test_the_directory_of_a_stopped_node_is_read(spark: SparkSession, tmp_path: Path) -> None:
    node = Node(tmp_path / "data")
    middle = node.now()
    node.put({"customer": 1, "id": 1000, "note": "late"})
    assert node.served.end(signal.SIGTERM)[0] == 0
    node.served.close()
    path = f"{node.data}/tables/orders"
    assert ids(load(spark, path)) == [*range(60), 1000]
    schema, parts = planned(path, timestamp=middle)
    assert shown(rows_of(schema, parts)) == expected(*ROWS)
    with pytest.raises(ScanStale, match="since this query was planned"):
        rows_of(schema, [replace(part, files=gone(part.files)) for part in parts])
    with pytest.raises(InvalidInput, match="is not the data directory of a node"):
        planned(f"{tmp_path}/tables/orders")
