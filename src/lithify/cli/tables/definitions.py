"""`lithify tables`, the verbs on definitions: list, create, show, alter, drop, index."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from lithify.cli.client import open_client
from lithify.cli.input import confirm_delete
from lithify.cli.options import AsJson, Data, Url, Yes
from lithify.cli.output import print_json, print_result, print_table
from lithify.cli.tables.values import Table, parse_text, path_of
from lithify.errors import LithifyError
from lithify.exit_codes import CONFLICT

__all__ = ["Index", "alter", "create", "drop", "indexes", "list_tables", "show"]

CHANGE_S = 60.0

Index = Annotated[str, typer.Argument(metavar="INDEX", help="The name of the index.")]
IndexColumns = Annotated[
    list[str], typer.Option("--column", metavar="COLUMN", help="A column; in this order.")
]


class IndexNotUnique(LithifyError):
    """The build of an index has found rows that it must not have, and has dropped it."""

    exit_code = CONFLICT

    def __init__(self, table: str, index: str) -> None:
        what = f"unique index {index} of table {table} is dropped"
        super().__init__(f"{what}: two rows have the same values in its columns")


indexes = typer.Typer(help="Create, drop and verify indexes of a table.", no_args_is_help=True)


def list_tables(data: Data = None, url: Url = None, as_json: AsJson = False) -> None:
    """List all tables."""
    with open_client(data, url) as client:
        found = client.call("GET", "/tables")
    if as_json:
        print_json(found)
        return
    rows = [
        [
            each["name"],
            each["zone"],
            str(each["partitions"]),
            str(each["replicas"]),
            str(len(each["columns"])),
            ", ".join(each["key"]),
            ", ".join(f"{index['name']} ({index['status']})" for index in each["indexes"]) or "-",
        ]
        for each in found
    ]
    columns = ("table", "zone", "partitions>", "replicas>", "columns>", "key", "indexes")
    print_table("Tables", columns, rows)


def _column(text: str) -> dict[str, Any]:
    """A column from `NAME:TYPE`, `NAME:TYPE?` if nullable, with `=DEFAULT` at the end."""
    head, equals, default = text.partition("=")
    name, _, kind = head.partition(":")
    column: dict[str, Any] = {"name": name, "type": kind.removesuffix("?")}
    if kind.endswith("?"):
        column["nullable"] = True
    if equals:
        column["default"] = parse_text(default)
    return column


def create(
    table: Table,
    column: Annotated[
        list[str],
        typer.Option(metavar="NAME:TYPE", help="A column; TYPE? is nullable, =DEFAULT may follow."),
    ],
    key: Annotated[
        list[str], typer.Option(metavar="COLUMN", help="A column of the key; in this order.")
    ],
    partition_key: Annotated[
        list[str] | None,
        typer.Option(
            metavar="COLUMN", help="A column that chooses the partition; default: the key."
        ),
    ] = None,
    zone: Annotated[
        str, typer.Option(metavar="ZONE", help="The zone that places it; default: the default.")
    ] = "",
    if_not_exists: Annotated[
        bool, typer.Option("--if-not-exists", help="Do nothing if it exists.")
    ] = False,
    data: Data = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Create a table."""
    body = {
        "name": table,
        "columns": [_column(each) for each in column],
        "key": key,
        "partition_key": partition_key or [],
        "zone": zone,
        "if_not_exists": if_not_exists,
    }
    with open_client(data, url, create=True) as client:
        found = client.call("POST", "/tables", body, timeout_s=CHANGE_S)
    done = "created" if found["changed"] else "exists"
    print_result(found, f"table {table} {done}", as_json=as_json)


def show(table: Table, data: Data = None, url: Url = None, as_json: AsJson = False) -> None:
    """Show a table."""
    with open_client(data, url) as client:
        found = client.call("GET", path_of(table))
    if as_json:
        print_json(found)
        return
    rows = [
        [
            each["name"],
            each["type"],
            "yes" if each["nullable"] else "no",
            "-" if each["default"] is None else str(each["default"]),
            "key" if each["name"] in found["key"] else "-",
        ]
        for each in found["columns"]
    ]
    place = f"zone {found['zone']}, {found['partitions']} partitions × {found['replicas']}"
    print_table(f"Table {table}, {place}", ("column", "type", "nullable", "default", ""), rows)
    if found["indexes"]:
        shown = [
            [each["name"], ", ".join(each["columns"]), str(each["unique"]), each["status"]]
            for each in found["indexes"]
        ]
        print_table("Indexes", ("index", "columns", "unique", "status"), shown)


def alter(
    table: Table,
    add: Annotated[
        list[str] | None, typer.Option(metavar="NAME:TYPE", help="A column to add, as in create.")
    ] = None,
    drop_column: Annotated[
        list[str] | None, typer.Option("--drop", metavar="COLUMN", help="A column to drop.")
    ] = None,
    widen: Annotated[
        list[str] | None, typer.Option(metavar="NAME:TYPE", help="A column and its wider type.")
    ] = None,
    data: Data = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Change the columns of a table."""
    body = {
        "add": [_column(each) for each in add or ()],
        "drop": drop_column or [],
        "alter": [_column(each) for each in widen or ()],
    }
    with open_client(data, url) as client:
        found = client.call("POST", path_of(table, "columns"), body, timeout_s=CHANGE_S)
    done = "changed" if found["changed"] else "is as it was"
    print_result(found, f"table {table} {done}", as_json=as_json)


def drop(
    table: Table, yes: Yes = False, data: Data = None, url: Url = None, as_json: AsJson = False
) -> None:
    """Drop a table and its rows."""
    confirm_delete(f"table {table} and its rows", yes=yes)
    with open_client(data, url) as client:
        found = client.call("DELETE", path_of(table), timeout_s=CHANGE_S)
    print_result(found, f"table {table} dropped", as_json=as_json)


@indexes.command("create")
def create_index(
    table: Table,
    index: Index,
    column: IndexColumns,
    unique: Annotated[
        bool, typer.Option("--unique", help="Refuse a second row with the same values.")
    ] = False,
    data: Data = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Create an index. A node builds it in the background; with --data it is built at once."""
    path = path_of(table, "indexes", index)
    done = "is being built"
    with open_client(data, url) as client:
        body = {"columns": column, "unique": unique}
        found = client.call("PUT", path, body, timeout_s=CHANGE_S)
        if client.finish():
            done = "is available"
            left = client.call("GET", path_of(table))["indexes"]
            if index not in [each["name"] for each in left]:
                raise IndexNotUnique(table, index)
    print_result(found, f"index {index} of table {table} {done}", as_json=as_json)


@indexes.command("drop")
def drop_index(
    table: Table, index: Index, data: Data = None, url: Url = None, as_json: AsJson = False
) -> None:
    """Drop an index."""
    path = path_of(table, "indexes", index)
    with open_client(data, url) as client:
        found = client.call("DELETE", path, timeout_s=CHANGE_S)
    print_result(found, f"index {index} of table {table} dropped", as_json=as_json)
