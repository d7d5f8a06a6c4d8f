"""`lithify tables index verify`: compare an index with the rows of its table."""

from __future__ import annotations

import os
from dataclasses import asdict
from typing import TYPE_CHECKING
from urllib.parse import quote

import typer

from lithify.cli.options import AsJson, Data, Url
from lithify.cli.output import human_count, print_json, print_line
from lithify.cli.tables.definitions import Index
from lithify.cli.tables.values import Table
from lithify.errors import InvalidInput
from lithify.exit_codes import FAILED

if TYPE_CHECKING:
    from lithify.compaction.tasks.jobs import Jobs

__all__ = ["verify"]


def verify(
    table: Table, index: Index, data: Data = None, url: Url = None, as_json: AsJson = False
) -> None:
    """Compare an index with the rows of its table; a large table as Spark jobs."""
    from lithify.cli.client.http_client import NodeClient
    from lithify.spark.tables.index_check import check_index
    from lithify.spark.tables.table_query import TableQuery

    if data is not None and url is not None:
        raise InvalidInput("--data and --url name two different places: give one of them")
    place = NodeClient(url).name if data is None else data
    path, token = f"{place}/tables/{quote(table, safe='')}", os.environ.get("LITHIFY_TOKEN", "")
    query = TableQuery.of({"path": path, "token": token})
    checked = check_index(query, index, _jobs)
    if as_json:
        print_json(asdict(checked))
    else:
        rows, entries = human_count(checked.rows), human_count(checked.entries)
        outcome = f"{checked.differences} differences" if checked.differences else "equal"
        print_line(f"index {index} of table {table}: {rows} rows, {entries} entries, {outcome}")
        for example in checked.examples:
            print_line(f"  {example}")
    if checked.differences:
        raise typer.Exit(FAILED)


def _jobs(is_large: bool) -> Jobs:
    if not is_large:
        from lithify.compaction.tasks.jobs import LocalJobs

        return LocalJobs()
    from lithify.pipeline.jobs import SparkJobs
    from lithify.pipeline.session import open_session

    return SparkJobs(open_session())
