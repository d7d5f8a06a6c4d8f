"""`lithify tables` at three real nodes: each takes every command."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from pyspark.sql.pandas.types import to_arrow_schema

from lithify.exit_codes import NOT_FOUND
from lithify.spark.tables.arrow_columns import spark_schema
from lithify.spark.tables.table_parts import read_part
from lithify.spark.tables.table_query import TableQuery
from tests.cli.cluster_members import members, start_all

if TYPE_CHECKING:
    from pathlib import Path


def test_a_transaction_is_used_and_committed_through_other_nodes(tmp_path: Path) -> None:
    with members(tmp_path, 3, tick_ms=50) as nodes:
        start_all(nodes)
        one, two, three = nodes
        one.run("tables", "create", "t", "--column", "id:int32", "--key", "id")
        transaction = one.run("tables", "tx", "begin").strip()
        assert transaction.startswith("n1.")
        two.run("tables", "put", "t", "id=5", "--tx", transaction)
        assert json.loads(three.run("tables", "get", "t", "id=5", "--tx", transaction, "--json"))
        assert three.try_run("tables", "get", "t", "id=5")[0] == NOT_FOUND
        assert three.run("tables", "tx", "commit", transaction) == "committed\n"
        for node in nodes:
            assert json.loads(node.run("tables", "scan", "t", "--json")) == {"id": 5}


def test_a_scan_reads_files_of_its_node_and_partitions_of_others_through_it(tmp_path: Path) -> None:
    with members(tmp_path, 3, tick_ms=50) as nodes:
        start_all(nodes)
        one = nodes[0]
        one.run("catalog", "apply", "-", stdin=b"[zones.z]\npartitions = 6\nreplicas = 1\n")
        one.run("tables", "create", "t", "--column", "id:int32", "--key", "id", "--zone", "z")
        lines = "".join(f'{{"id": {number}}}\n' for number in range(60)).encode()
        one.run("tables", "put", "t", "--lines", "-", stdin=lines)
        direct = set()
        for node in nodes:
            moment, parts = TableQuery.of({"path": f"{node.url}/tables/t"}).plan()
            schema = to_arrow_schema(spark_schema(moment.table), timezone="UTC")
            found = [
                row["id"]
                for part in parts
                for batch in read_part(part, schema)
                for row in batch.to_pylist()
            ]
            assert sorted(found) == list(range(60))
            direct |= {(node.name, part.number) for part in parts if part.files is not None}
        assert len(direct) == len({number for _, number in direct}), "each has one replica"
        assert one.get("/catalog/pins") == []
