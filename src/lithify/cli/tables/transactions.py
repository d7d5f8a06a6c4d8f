"""`lithify tables tx`: transactions at a node; a directory has none that outlives the command."""

from __future__ import annotations

from typing import Annotated

import typer

from lithify.cli.client import open_client
from lithify.cli.options import AsJson, Url
from lithify.cli.output import print_result
from lithify.cli.tables.values import At

__all__ = ["app"]

app = typer.Typer(help="Begin and end transactions at a node.", no_args_is_help=True)

Transaction = Annotated[str, typer.Argument(metavar="ID", help="What `begin` has printed.")]


@app.command()
def begin(
    read_only: Annotated[
        bool, typer.Option("--read-only", help="Read any rows, all of one moment.")
    ] = False,
    at: At = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Begin a transaction, and print its id for --tx."""
    with open_client(None, url) as client:
        body = {"read_only": read_only, "at": at}
        found = client.call("POST", "/tables/transactions", body)
    print_result(found, found["id"], as_json=as_json)


@app.command()
def commit(transaction: Transaction, url: Url = None, as_json: AsJson = False) -> None:
    """Commit a transaction."""
    _end(transaction, "commit", url, as_json=as_json)


@app.command()
def rollback(transaction: Transaction, url: Url = None, as_json: AsJson = False) -> None:
    """End a transaction without its writes."""
    _end(transaction, "rollback", url, as_json=as_json)


def _end(transaction: str, how: str, url: str | None, *, as_json: bool) -> None:
    from urllib.parse import quote

    with open_client(None, url) as client:
        client.call("POST", f"/tables/transactions/{quote(transaction, safe='')}/{how}")
    done = "committed" if how == "commit" else "rolled back"
    print_result({"id": transaction, "outcome": done}, done, as_json=as_json)
