"""`table-scan`: an aggregate over all columns of a table as a DataFrame, against Parquet.

A node in a process of its own has the table, in four partitions. Its rows were put in transactions
of several rows. The other side aggregates the same rows from Parquet files that Spark has written.
One warm session with two cores reads both, and each round plans its query again. At the node this
includes the hold, and a check that the snapshot has the rows; no round writes a snapshot.

The session is for queries, if no row before this one has opened another.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import lithify
from bench.harness import Case
from lithify.catalog.commands.tables import ColumnDefinition, CreateTable
from lithify.catalog.commands.zones import CreateZone
from lithify.metastore.transaction import Put, Transaction
from lithify.pipeline.session import open_session
from lithify.tables.keys import partition_of, row_key
from lithify.tables.rows import encode_row

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from lithify.node.node import Node

__all__ = ["CASES", "FULL", "QUICK", "Sizes"]

PARTITIONS = 4
TOGETHER = 100
"""Rows of a transaction."""
IN_PROGRESS = 16
"""Transactions of a partition."""
COLUMNS = (
    ColumnDefinition("customer", "int32"),
    ColumnDefinition("id", "int64"),
    ColumnDefinition("amount", "float64"),
    ColumnDefinition("at", "timestamp"),
    ColumnDefinition("note", "string", nullable=True),
)
ORDERS = CreateTable("orders", COLUMNS, ("customer", "id"), ("customer",), zone="z")
AGGREGATE = ("sum(customer)", "sum(id)", "sum(amount)", "max(at)", "max(note)")


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much there is."""

    rounds: int
    rows: int


FULL = Sizes(rounds=9, rows=1_000_000)
QUICK = Sizes(rounds=1, rows=1000)


def _row(number: int) -> dict[str, Any]:
    return {
        "customer": number % 1000,
        "id": number,
        "amount": number / 4,
        "at": f"2026-01-{1 + number % 28:02d}T12:00:00+00:00",
        "note": f"order {number}" if number % 10 else None,
    }


async def _fill(node: Node, rows: int) -> None:
    tables = node.cluster.tables
    assert tables is not None
    await tables.execute([CreateZone("z", PARTITIONS, 1), ORDERS])
    table = node.cluster.catalog.current.table("orders")
    assert table is not None
    puts: list[list[Put]] = [[] for _ in range(PARTITIONS)]
    for number in range(rows):
        row = _row(number)
        put = Put(row_key(table, row), encode_row(table, row))
        puts[partition_of(table, row, PARTITIONS)].append(put)

    async def write(number: int) -> None:
        store = await tables.hosting.ready((table.zone_id, number))
        starts = iter(range(0, len(puts[number]), TOGETHER))

        async def some() -> None:
            for start in starts:
                then = tuple(puts[number][start : start + TOGETHER])
                await store.transact(Transaction(then=then))

        await asyncio.gather(*(some() for _ in range(IN_PROGRESS)))

    for number in range(PARTITIONS):
        await write(number)


@contextmanager
def _served(data: str) -> Iterator[str]:
    """The address of a node in another process."""
    ports = ("--http-port", "0", "--pulsar-port", "0")
    command = [sys.executable, "-m", "lithify", "serve", "--data", data, *ports]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            yield process.stdout.readline().removeprefix("http").strip()
        finally:
            process.terminate()


def scan(directory: str, sizes: Sizes) -> Iterator[Case]:
    data, parquet = f"{directory}/data", f"{directory}/parquet"
    os.makedirs(directory, exist_ok=True)
    with lithify.open(data) as node:
        node.cluster.ask(lambda: _fill(node, sizes.rows))
    spark = open_session("local[2,4]", queries=True)
    found: dict[str, Any] = {}
    with _served(data) as url:

        def read(kind: str, path: str) -> float:
            began_s = time.perf_counter()
            frame = spark.read.format(kind).load(path)
            found[kind] = frame.selectExpr(*AGGREGATE).collect()
            return time.perf_counter() - began_s

        def ours() -> float:
            return read("lithify", f"{url}/tables/orders")

        def raw() -> float:
            seconds = read("parquet", parquet)
            assert found["parquet"] == found["lithify"]
            return seconds

        table = spark.read.format("lithify").load(f"{url}/tables/orders")
        table.write.parquet(parquet)
        yield Case(
            "table-scan",
            f"aggregate over all columns of a table of {sizes.rows:,} rows, in Spark",
            "the same aggregate over the same rows from Parquet",
            round(1 / 3, 2),
            sizes.rows,
            "rows",
            ours,
            raw,
        )


CASES: dict[str, Callable[[str, Sizes], Iterator[Case]]] = {"table-scan": scan}
"""Row by row, in the order of the table."""
