"""`lithify tables`, the verbs on rows: put, get, scan, delete."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from lithify.cli.client import open_client
from lithify.cli.input import file_pieces, line_groups, stdin_pieces
from lithify.cli.options import AsJson, Data, Url
from lithify.cli.output import print_json, print_line, print_result, print_table
from lithify.cli.tables.values import At, Table, Tx, Values, parse_values, path_of, query
from lithify.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["delete", "get", "put", "scan"]

NDJSON = "application/x-ndjson"
PIECE_BYTES = 2**16
REQUEST_BYTES = 2**18
REQUEST_VALUES = 2000
"""Rows of one request have about this many bytes and values at most."""


def put(
    table: Table,
    values: Values = None,
    lines: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Rows as lines of JSON objects; - is stdin."),
    ] = None,
    tx: Tx = "",
    data: Data = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Insert or replace a row, or the rows in a file."""
    if (lines is None) == (not values):
        raise InvalidInput("give either COLUMN=VALUE or --lines")
    path = path_of(table, "rows") + query(tx=tx)
    with open_client(data, url) as client:
        if lines is None:
            count = client.call("POST", path, parse_values(values))["put"]
        else:
            pieces = stdin_pieces(PIECE_BYTES) if lines == "-" else file_pieces(lines, PIECE_BYTES)
            count = 0
            for body in _bodies(line_groups(pieces)):
                headers = {"content-type": NDJSON}
                count += client.call("POST", path, headers=headers, pieces=[body])["put"]
    print_result({"put": count}, f"{count} rows put", as_json=as_json)


def _bodies(groups: Iterator[list[bytes]]) -> Iterator[bytes]:
    """Lines as bodies of requests."""
    held: list[bytes] = []
    size = values = 0
    for line in (line for group in groups for line in group if line.strip()):
        added = 1 + line.count(b",")
        if held and (size + len(line) > REQUEST_BYTES or values + added > REQUEST_VALUES):
            yield b"\n".join(held)
            held, size, values = [], 0, 0
        held.append(line)
        size, values = size + len(line), values + added
    if held:
        yield b"\n".join(held)


def get(
    table: Table,
    values: Values = None,
    tx: Tx = "",
    at: At = None,
    data: Data = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Print the row with a key."""
    path = path_of(table, "row") + query(key=parse_values(values), tx=tx, at=at)
    with open_client(data, url) as client:
        row = client.call("GET", path)
    if as_json:
        print_json(row)
    else:
        for name, value in row.items():
            print_line(f"{name}={_shown(value)}")


def scan(
    table: Table,
    values: Values = None,
    index: Annotated[
        str, typer.Option(metavar="INDEX", help="Values are those of the columns of this index.")
    ] = "",
    limit: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Number of rows; default: all.")
    ] = None,
    tx: Tx = "",
    at: At = None,
    data: Data = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Print rows: all, or those whose key begins with values; with --json a line for each."""
    asked = query(prefix=parse_values(values), index=index, tx=tx, at=at)
    headers = {"accept": NDJSON}
    path = path_of(table, "rows") + asked
    shown: list[list[str]] = []
    columns: list[str] = []
    with (
        open_client(data, url) as client,
        client.open("GET", path, headers=headers, timeout_s=None) as answer,
    ):
        for count, row in enumerate(_rows(line_groups(answer.pieces()))):
            if limit is not None and count == limit:
                break
            if as_json:
                print_json(row, compact=True)
            else:
                columns = list(row)
                shown.append([_shown(value) for value in row.values()])
    if not as_json:
        print_table(f"Rows of {table}", columns or ("no rows",), shown)


def _rows(groups: Iterator[list[bytes]]) -> Iterator[dict[str, Any]]:
    import json

    for group in groups:
        for line in group:
            if line:
                yield json.loads(line)


def delete(
    table: Table,
    values: Values = None,
    tx: Tx = "",
    data: Data = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Delete the row with a key; no change if there is none."""
    key = parse_values(values)
    with open_client(data, url) as client:
        client.call("DELETE", path_of(table, "row") + query(key=key, tx=tx))
    print_result({"deleted": key}, "deleted", as_json=as_json)


def _shown(value: Any) -> str:
    import json

    return value if isinstance(value, str) else json.dumps(value)
