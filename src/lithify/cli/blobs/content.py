"""`lithify blobs`, the verbs on blobs: put, get, head, delete, undelete, ttl.

A put without a file, or with `-`, reads stdin; a get without one writes to stdout.
"""

from __future__ import annotations

import re
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated

import typer

from lithify.cli.blobs.paths import blob_path, store_path, with_query
from lithify.cli.client import open_client
from lithify.cli.input import file_pieces, pair, stdin_pieces
from lithify.cli.options import AsJson, Data, Store, Url
from lithify.cli.output import human_count, human_time, print_json, print_line, print_result
from lithify.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["Include", "delete", "get", "head", "put", "ttl", "undelete"]

PIECE_BYTES = 2**20

BlobId = Annotated[str, typer.Argument(metavar="ID")]
Include = Annotated[
    str, typer.Option(metavar="WHAT", help="Include also: expired, deleted or all.")
]

_TOKEN = re.compile(r"[-!#$%&'*+.^_`|~0-9A-Za-z]+")
"""A valid name of a header."""


def put(
    store: Store,
    file: Annotated[str, typer.Argument(metavar="[FILE]", help="-: stdin.")] = "-",
    service: Annotated[
        str, typer.Option(metavar="S", help="The service that stores the blob.")
    ] = "lithify",
    owner: Annotated[str, typer.Option(metavar="O", help="The owner of the blob.")] = "",
    content_type: Annotated[
        str | None, typer.Option(metavar="T", help="Default: from the name of the file.")
    ] = None,
    ttl: Annotated[int, typer.Option(metavar="S", help="Seconds to expiry; -1: never.")] = -1,
    metadata: Annotated[
        list[str] | None,
        typer.Option("--meta", metavar="NAME=VALUE", help="User metadata; repeatable."),
    ] = None,
    data: Data = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Store a file or stdin as a new blob and print its id."""
    from mimetypes import guess_type

    pairs = dict(pair("metadata", text) for text in metadata or [])
    headers = _checked_headers(
        {
            "x-lithify-service-id": service,
            "x-lithify-owner-id": owner,
            "x-lithify-content-type": content_type
            or guess_type(file)[0]
            or "application/octet-stream",
            "x-lithify-ttl": str(ttl),
            **{f"x-lithify-um-{name}": value for name, value in pairs.items()},
        }
    )
    with open_client(data, url) as client:
        pieces = stdin_pieces(PIECE_BYTES) if file == "-" else file_pieces(file, PIECE_BYTES)
        row = client.call("POST", store_path(store), headers=headers, pieces=pieces)
    print_result(row, row["id"], as_json=as_json)


def _checked_headers(headers: dict[str, str]) -> dict[str, str]:
    for name, value in headers.items():
        if not _TOKEN.fullmatch(name):
            shown = repr(name.removeprefix("x-lithify-um-"))
            raise InvalidInput(f"metadata name {shown} has characters that no header can have")
        if not value.isprintable():
            raise InvalidInput(f"{name} {value!r} has characters that no header can have")
    return headers


def get(
    store: Store,
    blob_id: BlobId,
    out: Annotated[str, typer.Option(metavar="FILE", help="-: stdout.")] = "-",
    include: Include = "none",
    data: Data = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Write the content of a blob to a file or to stdout."""
    if as_json and out == "-":
        raise InvalidInput("--json prints what was written, which needs --out FILE")
    if out != "-":
        _check_replaceable(out)
    path = with_query(blob_path(store, blob_id), include=include)
    with open_client(data, url) as client, client.open("GET", path) as answer:
        if out == "-":
            for piece in answer.pieces():
                sys.stdout.buffer.write(piece)
            sys.stdout.buffer.flush()
            return
        size = _write(out, answer.pieces())
    row = {"id": blob_id, "size": size, "file": out}
    print_result(row, f"{human_count(size)} bytes in {out}", as_json=as_json)


def _check_replaceable(path: str) -> None:
    """Refuse devices: the write would replace one with a file."""
    from lithify.fs import LocalFileSystem

    with suppress(FileNotFoundError):
        if not LocalFileSystem().stat(path).is_file:
            raise InvalidInput(f"{path} is not a regular file; - is stdout")


def _write(path: str, pieces: Iterable[bytes]) -> int:
    """Create or replace a file after all of its content has arrived; returns its size."""
    import secrets

    from lithify.fs import LocalFileSystem
    from lithify.fs.atomic import TEMPORARY_SUFFIX

    fs, size = LocalFileSystem(), 0
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


def head(
    store: Store,
    blob_id: BlobId,
    include: Include = "none",
    data: Data = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Show everything about a blob except its content."""
    path = with_query(f"{blob_path(store, blob_id)}/info", include=include)
    with open_client(data, url) as client:
        row = client.call("GET", path)
    if as_json:
        print_json(row)
        return
    times = ("created_ms", "changed_ms", "expiry_ms")
    for name, value in row.items():
        shown = human_time(value) if name in times and value is not None else value
        print_line(f"  {name:<12}  {'never' if value is None else shown}")


def delete(
    store: Store,
    blob_id: BlobId,
    data: Data = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Delete a blob; it can be undeleted within the retention of the store."""
    with open_client(data, url) as client:
        row = client.call("DELETE", blob_path(store, blob_id))
    print_result(row, f"deleted {blob_id}", as_json=as_json)


def undelete(
    store: Store,
    blob_id: BlobId,
    data: Data = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Restore a deleted blob, within the retention of the store."""
    with open_client(data, url) as client:
        row = client.call("PUT", f"{blob_path(store, blob_id)}/undelete")
    print_result(row, f"undeleted {blob_id}", as_json=as_json)


def ttl(
    store: Store,
    blob_id: BlobId,
    seconds: Annotated[int, typer.Argument(metavar="SECONDS", help="-1: never.")],
    data: Data = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Set the time until a blob expires, from now on."""
    with open_client(data, url) as client:
        row = client.call("PUT", f"{blob_path(store, blob_id)}/ttl", {"ttl": seconds})
    when = "never" if row["expiry_ms"] is None else human_time(row["expiry_ms"])
    print_result(row, f"{blob_id} expires: {when}", as_json=as_json)
