"""Other ways to find the newest message of each key: `python -m bench.queries WHAT SOURCE TARGET`.

    window      Spark SQL, a window over each key, in a session of its own
    semi-join   DuckDB, the rows whose number is the greatest of their key

They read the Parquet files of a directory and write one to another, without fsync, each time they
are told to (`copying.py`).
"""

from __future__ import annotations

import importlib
import os
import shutil
import sys
from functools import partial
from typing import TYPE_CHECKING, Any

from bench.copying import serve
from lithify.pipeline.session import open_session

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

__all__ = ["clean", "prepare"]


def window(spark: Any, source: str, target: str) -> None:
    query = "row_number() OVER (PARTITION BY key ORDER BY seq DESC) AS place"
    rows = spark.read.parquet(source).selectExpr("*", query)
    rows.where("place = 1").drop("place").write.parquet(f"{target}/window")


def semi_join(duckdb: Any, source: str, target: str) -> None:
    with duckdb.connect(config={"threads": 2}) as connection:
        rows = f"read_parquet('{source}/*.parquet')"
        newest = f"SELECT max(seq) FROM {rows} GROUP BY key"
        query = f"SELECT * FROM {rows} WHERE seq IN ({newest})"
        out = f"{target}/duckdb.parquet"
        connection.execute(f"COPY ({query}) TO '{out}' (COMPRESSION uncompressed)")


def clean(target: str) -> None:
    shutil.rmtree(target, ignore_errors=True)
    os.mkdir(target)


def own_session() -> SparkSession:
    """For queries alone: its JVM compiles for long runs."""
    return open_session("local[2,4]", queries=True)


def prepare(
    query: str, source: str, target: str, session: Callable[[], SparkSession]
) -> Callable[[], None]:
    """What runs the query once."""
    if query == "window":
        spark = session()
        spark.conf.set("spark.sql.shuffle.partitions", "8")
        return partial(window, spark, source, target)
    if query == "semi-join":
        return partial(semi_join, importlib.import_module("duckdb"), source, target)
    raise ValueError(f"unknown query: {query}")


if __name__ == "__main__":
    query, source, target = sys.argv[1:]
    work = prepare(query, source, target, own_session)
    clean(target)
    serve(work, partial(clean, target))
