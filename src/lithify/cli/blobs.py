"""`lithify blobs`: the blob stores of a node, or of a data directory that nobody serves.

    lithify blobs create STORE --capacity SIZE --segment SIZE [--namespace T/N] [--set NAME=VALUE]…
    lithify blobs drop STORE
    lithify blobs list [STORE] [--include WHAT]
    lithify blobs list --unclaimed | --missing
    lithify blobs put STORE [FILE] [--service S] [--owner O] [--content-type T] [--ttl S] [--meta …]
    lithify blobs get STORE ID [--out FILE] [--include WHAT]
    lithify blobs head|delete|undelete STORE ID
    lithify blobs ttl STORE ID SECONDS

All take `--json`, and `--data DIR` or `--url URL`, see `blob_admin.py`. A put without a file, or
with `-`, reads stdin, a get without one writes to stdout. The verbs on whole stores are in
`blob_stores.py`.
"""

# ruff: noqa: PLC0415  (commands import what they need when they run, see main.py)

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lithify.cli.blob_admin import NewBlob, open_blobs
from lithify.cli.output import human_count, human_time, print_json, print_line, print_table
from lithify.cli.topics import (  # typer reads them at run time
    AsJson,
    Data,
    Missing,
    Unclaimed,
    Url,
    Yes,
    confirm_delete,
    pair,
)
from lithify.errors import FAILED, InvalidInput, ReadFailed
from lithify.units import parse_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lithify.blobs.spool import Readable
    from lithify.fs import File

__all__ = [
    "NAMESPACE",
    "Capacity",
    "Namespace",
    "Segment",
    "Settings",
    "Store",
    "app",
    "print_result",
    "settings_of",
]

app = typer.Typer(
    help="Create blob stores; put, get, change and delete blobs.", no_args_is_help=True
)

NAMESPACE = "public/default"

Store = Annotated[str, typer.Argument(metavar="STORE")]
BlobId = Annotated[str, typer.Argument(metavar="ID")]
Capacity = Annotated[str, typer.Option(metavar="SIZE", help="Like 16GiB or 16GB; never changes.")]
Segment = Annotated[str, typer.Option(metavar="SIZE", help="Must divide the capacity.")]
Include = Annotated[
    str, typer.Option(metavar="WHAT", help="Look also at: expired, deleted or all.")
]
Namespace = Annotated[
    str, typer.Option(metavar="TENANT/NAMESPACE", help="Whose rights hold for the store.")
]


def print_result(row: dict[str, Any], line: str, *, as_json: bool) -> None:
    """What a command has done."""
    if as_json:
        print_json(row)
    else:
        print_line(line)


Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="A setting, like policy=stats."),
]


def settings_of(texts: list[str] | None) -> dict[str, Any]:
    """What `--set NAME=VALUE` gives, each value JSON or else text."""
    from lithify.blobs.definition import named_settings, parse_value

    pairs = (pair("setting", text) for text in texts or [])
    return named_settings((name, parse_value(value)) for name, value in pairs)


@app.command()
def create(
    store: Store,
    capacity: Capacity,
    segment: Segment,
    namespace: Namespace = NAMESPACE,
    settings: Settings = None,
    data: Data = None,
    url: Url = None,
    as_json: AsJson = False,  # noqa: FBT002  an option
) -> None:
    """Create a store, which must not exist."""
    shape = {
        "capacity_bytes": parse_bytes(capacity),
        "segment_bytes": parse_bytes(segment),
        "settings": settings_of(settings),
    }
    with open_blobs(data, url, create=True) as admin:
        row = admin.create(store, shape, namespace)
    warning = f"; {row['warning']}" if "warning" in row else ""
    print_result(row, f"created {store}{warning}", as_json=as_json)


@app.command()
def drop(
    store: Store,
    yes: Yes = False,  # noqa: FBT002  an option
    data: Data = None,
    url: Url = None,
    as_json: AsJson = False,  # noqa: FBT002  an option
) -> None:
    """Delete a store with all its blobs."""
    confirm_delete(f"store {store} with all its blobs", yes=yes)
    with open_blobs(data, url) as admin:
        admin.drop(store)
    print_result({"store": store}, f"deleted {store}", as_json=as_json)


@app.command("list")
def list_blobs(
    store: Annotated[str | None, typer.Argument(metavar="[STORE]")] = None,
    namespace: Namespace = NAMESPACE,
    include: Include = "none",
    unclaimed: Unclaimed = False,  # noqa: FBT002  an option
    missing: Missing = False,  # noqa: FBT002  an option
    data: Data = None,
    url: Url = None,
    as_json: AsJson = False,  # noqa: FBT002  an option
) -> None:
    """List the stores of a namespace, or the blobs of a store, one a line."""
    if unclaimed or missing:
        from lithify.cli.unclaimed import print_missing, print_unclaimed

        show = print_unclaimed if unclaimed else print_missing
        show("stores", data, url, as_json=as_json)
        return
    with open_blobs(data, url) as admin:
        if store is None:
            _print_stores(namespace, admin.stores(namespace), as_json=as_json)
            return
        for row in admin.blobs(store, include):
            if as_json:
                print_json(row, compact=True)
            else:
                size, created = human_count(row["size"]), human_time(row["created_ms"])
                print_line(f"{row['id']}  {created}  {size:>15}  {row['content_type']}")


def _print_stores(namespace: str, rows: list[dict[str, Any]], *, as_json: bool) -> None:
    from lithify.compaction.plan import human_bytes

    broken = [row for row in rows if "error" in row]
    if as_json:
        print_json(rows)
    else:
        sizes = [[row[f"{what}_bytes"] for what in _SIZES] for row in rows]
        shown = [
            [row["store"], *("damaged" if each is None else human_bytes(each) for each in of_row)]
            for row, of_row in zip(rows, sizes, strict=True)
        ]
        columns = ("name", *(f"{what}>" for what in _SIZES))
        print_table(f"Blob stores of {namespace}", columns, shown)
        for row in broken:
            print_line(f"  {row['store']}: {row['error']}")
    if broken:
        raise typer.Exit(FAILED)


_SIZES = ("used", "capacity", "segment")


# --- content ----------------------------------------------------------------------------------


class _FileStream:
    """A file as a stream."""

    def __init__(self, file: File) -> None:
        self._file = file
        self._at = 0

    def read(self, size: int, /) -> bytes:
        try:
            data = self._file.pread(size, self._at)
        except OSError as error:
            raise ReadFailed(self._file.path, self._at, error) from error
        self._at += len(data)
        return data


@app.command()
def put(
    store: Store,
    file: Annotated[str, typer.Argument(metavar="[FILE]", help="-: stdin.")] = "-",
    service: Annotated[str, typer.Option(metavar="S", help="Who stores it.")] = "lithify",
    owner: Annotated[str, typer.Option(metavar="O", help="Whose it is.")] = "",
    content_type: Annotated[str | None, typer.Option(metavar="T", help="Else by name.")] = None,
    ttl: Annotated[int, typer.Option(metavar="S", help="Seconds; -1 is never.")] = -1,
    metadata: Annotated[
        list[str] | None, typer.Option("--meta", metavar="NAME=VALUE", help="User metadata.")
    ] = None,
    data: Data = None,
    url: Url = None,
    as_json: AsJson = False,  # noqa: FBT002  an option
) -> None:
    """Store a file or stdin as a new blob, and print its id."""
    from mimetypes import guess_type

    from lithify.fs import LocalFileSystem

    kind = content_type or guess_type(file)[0] or "application/octet-stream"
    pairs = dict(pair("metadata", text) for text in metadata or [])
    new = NewBlob(service, owner, kind, ttl, pairs)
    with open_blobs(data, url) as admin:
        if file == "-":
            content: Readable = sys.stdin.buffer
            row = admin.put(store, content, new)
        else:
            with LocalFileSystem().open_read(file) as opened:
                row = admin.put(store, _FileStream(opened), new)
    print_result(row, row["id"], as_json=as_json)


@app.command()
def get(
    store: Store,
    blob_id: BlobId,
    out: Annotated[str, typer.Option(metavar="FILE", help="-: stdout.")] = "-",
    include: Include = "none",
    data: Data = None,
    url: Url = None,
    as_json: AsJson = False,  # noqa: FBT002  an option
) -> None:
    """Write the content of a blob to a file or to stdout."""
    if as_json and out == "-":
        raise InvalidInput("--json says what was written, which needs --out FILE")
    with open_blobs(data, url) as admin:
        pieces = admin.get(store, blob_id, include)
        if out == "-":
            for piece in pieces:
                sys.stdout.buffer.write(piece)
            sys.stdout.buffer.flush()
            return
        size = _write(out, pieces)
    row = {"id": blob_id, "size": size, "file": out}
    print_result(row, f"{human_count(size)} bytes in {out}", as_json=as_json)


def _write(path: str, pieces: Iterable[bytes]) -> int:
    """Put a file in place once all of it has come; its size."""
    import secrets
    from contextlib import suppress

    from lithify.fs import LocalFileSystem
    from lithify.fs.atomic import TEMPORARY_SUFFIX

    fs, size = LocalFileSystem(), 0
    with suppress(FileNotFoundError):
        if not fs.stat(path).is_file:
            # A device would be replaced by a file.
            raise InvalidInput(f"{path} is no file that could be replaced; - is stdout")
    temporary = f"{path}.{secrets.token_hex(4)}{TEMPORARY_SUFFIX}"
    try:
        with fs.open_append(temporary, exclusive=True) as file:
            for piece in pieces:
                file.write(piece)
                size += len(piece)
        fs.rename(temporary, path)
    except BaseException:
        with suppress(FileNotFoundError):
            fs.remove(temporary)
        raise
    return size


# --- one blob ---------------------------------------------------------------------------------


@app.command()
def head(
    store: Store,
    blob_id: BlobId,
    include: Include = "none",
    data: Data = None,
    url: Url = None,
    as_json: AsJson = False,  # noqa: FBT002  an option
) -> None:
    """Show everything about a blob but its content."""
    with open_blobs(data, url) as admin:
        row = admin.info(store, blob_id, include)
    if as_json:
        print_json(row)
        return
    times = ("created_ms", "changed_ms", "expiry_ms")
    for name, value in row.items():
        shown = human_time(value) if name in times and value is not None else value
        print_line(f"  {name:<12}  {'never' if value is None else shown}")


@app.command()
def delete(
    store: Store,
    blob_id: BlobId,
    data: Data = None,
    url: Url = None,
    as_json: AsJson = False,  # noqa: FBT002  an option
) -> None:
    """Delete a blob; within the store's retention it can be undeleted."""
    with open_blobs(data, url) as admin:
        row = admin.delete(store, blob_id)
    print_result(row, f"deleted {blob_id}", as_json=as_json)


@app.command()
def undelete(
    store: Store,
    blob_id: BlobId,
    data: Data = None,
    url: Url = None,
    as_json: AsJson = False,  # noqa: FBT002  an option
) -> None:
    """Take a delete back, if its retention is not over."""
    with open_blobs(data, url) as admin:
        row = admin.undelete(store, blob_id)
    print_result(row, f"undeleted {blob_id}", as_json=as_json)


@app.command(context_settings={"ignore_unknown_options": True})
def ttl(
    store: Store,
    blob_id: BlobId,
    seconds: Annotated[int, typer.Argument(metavar="SECONDS", help="-1 is never.")],
    data: Data = None,
    url: Url = None,
    as_json: AsJson = False,  # noqa: FBT002  an option
) -> None:
    """Let a blob expire so many seconds from now."""
    with open_blobs(data, url) as admin:
        row = admin.ttl(store, blob_id, seconds)
    when = "never" if row["expiry_ms"] is None else human_time(row["expiry_ms"])
    print_result(row, f"{blob_id} expires: {when}", as_json=as_json)
