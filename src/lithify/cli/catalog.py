"""`lithify catalog`: the definitions of a cluster, version by version.

    lithify catalog show [--version N | --at TIME]
    lithify catalog history [--limit N]
    lithify catalog diff A B
    lithify catalog apply FILE [--dry-run]
    lithify catalog snapshot VERSION [--force]

and the verbs of compaction and pins (`catalog_compaction.py`).

All take `--json`, and `--data DIR` or `--url URL` (`client/`).
"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from lithify.cli import catalog_compaction
from lithify.cli.client import open_client
from lithify.cli.input import file_pieces, stdin_pieces
from lithify.cli.options import AsJson, Data, Url
from lithify.cli.output import human_count, print_json, print_line, print_table

__all__ = ["app"]

app = typer.Typer(
    help="Show, compare and change the definitions of a cluster.", no_args_is_help=True
)

APPLY_S = 60.0
PIECE_BYTES = 2**16
_NAMED = ("kind", "id", "name", "updated")


def _when(time: int) -> str:
    """The time of a version; the empty version 0 was always in force."""
    from lithify.hybrid_time import MIN_TIMESTAMP, describe

    return describe(time) if time > MIN_TIMESTAMP else "-"


@app.command()
def show(
    version: Annotated[
        int | None, typer.Option(metavar="N", min=0, help="This version; default: in force now.")
    ] = None,
    at: Annotated[
        str | None,
        typer.Option(
            metavar="TIME", help="The version in force then: ISO 8601, or milliseconds since 1970."
        ),
    ] = None,
    data: Data = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Show all objects of a version."""
    from urllib.parse import urlencode

    asked = {"version": version, "at": at}
    query = urlencode({name: value for name, value in asked.items() if value is not None})
    with open_client(data, url) as client:
        found = client.call("GET", f"/catalog?{query}" if query else "/catalog")
    if as_json:
        print_json(found)
        return
    rows = [
        [each["kind"], str(each["id"]), each["name"], each["updated"] or "-", _fields(each)]
        for each in found["objects"]
    ]
    title = f"Catalog version {found['version']}, from {_when(found['activation'])}"
    print_table(title, ("kind", "id>", "name", "updated", "definition"), rows)


def _fields(row: dict[str, Any]) -> str:
    """What an object has beside its name; empty values are left out."""
    import json

    parts = []
    for name, value in row.items():
        if name in _NAMED or value in (None, "", [], {}, False):
            continue
        if isinstance(value, list) and all(isinstance(each, str) for each in value):
            text = ",".join(value)
        elif isinstance(value, str | int):
            text = str(value)
        else:
            text = json.dumps(value, separators=(",", ":"))
        parts.append(f"{name}={text}")
    return " ".join(parts) or "-"


@app.command()
def history(
    limit: Annotated[
        int, typer.Option(metavar="N", min=0, max=100, help="Number of versions to list.")
    ] = 20,
    data: Data = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """List the newest versions and what each has changed, newest first."""
    with open_client(data, url) as client:
        rows = client.call("GET", f"/catalog/history?limit={limit}")
    if as_json:
        print_json(rows)
        return
    shown = []
    for row in rows:
        changes = row["changes"]
        what = "the earliest one left" if changes is None else changes[0] if changes else "-"
        more = f" (and {len(changes) - 1} more)" if changes and len(changes) > 1 else ""
        version = [str(row["version"]), _when(row["activation"]), human_count(row["objects"])]
        shown.append([*version, what + more])
    print_table("Versions", ("version>", "from", "objects>", "change"), shown)


@app.command()
def diff(
    a: Annotated[int, typer.Argument(metavar="A", min=0)],
    b: Annotated[int, typer.Argument(metavar="B", min=0)],
    data: Data = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Show what differs between two versions."""
    with open_client(data, url) as client:
        found = client.call("GET", f"/catalog/diff?a={a}&b={b}")
    _print_differences(found, as_json=as_json)


def _print_differences(found: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print_json(found)
        return
    for each in found["differences"]:
        print_line(each["text"])


@app.command()
def apply(
    file: Annotated[str, typer.Argument(metavar="FILE", help="Definitions as TOML; - is stdin.")],
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what would differ; change nothing.")
    ] = False,
    data: Data = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Change the definitions to what a file says; what it does not name stays."""
    pieces = stdin_pieces(PIECE_BYTES) if file == "-" else file_pieces(file, PIECE_BYTES)
    path = "/catalog/apply" + ("?dry_run=true" if dry_run else "")
    headers = {"content-type": "application/toml"}
    with (
        open_client(data, url, create=not dry_run) as client,
        client.open("POST", path, headers=headers, pieces=pieces, timeout_s=APPLY_S) as answer,
    ):
        import json

        found = json.loads(answer.read())
    _print_differences(found, as_json=as_json)
    if as_json:
        return
    if dry_run:
        if not found["differences"]:
            print_line("nothing would change")
    elif found["changed"]:
        print_line(f"version {found['version']}, from {_when(found['activation'])}")
    else:
        print_line(f"nothing has changed: version {found['version']}")


for verb in (
    catalog_compaction.snapshot,
    catalog_compaction.compact,
    catalog_compaction.compaction_status,
    catalog_compaction.compaction_history,
    catalog_compaction.cancel_compaction,
    catalog_compaction.holds,
    catalog_compaction.pin,
    catalog_compaction.unpin,
    catalog_compaction.pins,
):
    app.command()(verb)
