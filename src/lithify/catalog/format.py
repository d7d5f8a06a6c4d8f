"""The bytes of updates and snapshots of the catalog: JSON. Pure.

    update     {"format":1,"version":7,"delay_ms":500,"changes":[
                 {"put":"topic","id":12,"namespace_id":3,"name":"orders",…},
                 {"remove":9},{"next_id":13},{"default_zone":1}]}

    snapshot   lines, ascending by id, in chunks of whole lines:
               {"format":1,"version":7,"activation":…,"next_id":13,"default_zone":1,"objects":2}
               {"kind":"zone","id":1,"name":"default","partitions":16,"replicas":1,"updated":…}
               {"kind":"tenant",…}

A row has the fields of the descriptor; fields that have their default are left out, and `updated`
in an update. A column is [id, name, type, nullable, default, since], a past one has `until` as
well. The same catalog always has the same bytes, so two snapshots of a version can be compared.

An update has at most `UPDATE_BYTES_MAX` bytes, so every line of a snapshot is shorter. A chunk has
at most `CHUNK_BYTES_MAX` bytes unless it is a single line; neither encoding nor decoding has more
than one chunk in memory beside the catalog.

The layers below check CRCs. What is not such JSON raises `DamagedFile`, a newer format
`UnsupportedVersion`.
"""

from __future__ import annotations

import json
from dataclasses import MISSING, fields
from sys import intern
from typing import TYPE_CHECKING, Any, get_args

from lithify.catalog.catalog import Catalog, CatalogBuilder
from lithify.catalog.changes import (
    CatalogUpdate,
    PutObject,
    RemoveObject,
    SetDefaultZoneId,
    SetNextId,
)
from lithify.catalog.column_types import ColumnType
from lithify.catalog.errors import UpdateTooLarge
from lithify.catalog.objects import (
    CatalogObject,
    Column,
    IndexStatus,
    ObjectKind,
    PastColumn,
)
from lithify.errors import DamagedFile, UnsupportedVersion

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from lithify.catalog.changes import CatalogChange

__all__ = [
    "CATALOG_FORMAT",
    "CHUNK_BYTES_MAX",
    "UPDATE_BYTES_MAX",
    "SnapshotDecoder",
    "decode_object",
    "decode_snapshot",
    "decode_update",
    "encode_object",
    "encode_update",
    "snapshot_chunks",
]

CATALOG_FORMAT = 1
UPDATE_BYTES_MAX = 1_000_000
"""Below the 1 MiB of a value in the metastore."""
CHUNK_BYTES_MAX = 256 * 1024

_KINDS: dict[str, type[CatalogObject]] = {kind.kind: kind for kind in get_args(CatalogObject)}
_encode = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode


def _column_row(column: Column) -> list[Any]:
    return [
        column.id,
        column.name,
        str(column.type),
        column.nullable,
        column.default,
        column.since,
    ]


def _column(row: list[Any]) -> Column:
    number, name, text, nullable, default, since = row
    return Column(number, name, ColumnType.parse(text), nullable, default, since)


# Fields of which the value in a row differs from that in the descriptor.
_TO_ROW: dict[tuple[str, str], Callable[[Any], Any]] = {
    ("table", "columns"): lambda columns: [_column_row(each) for each in columns],
    ("table", "past"): lambda past: [[*_column_row(each.column), each.until] for each in past],
}
_FROM_ROW: dict[tuple[str, str], Callable[[Any], Any]] = {
    ("topic", "owners"): lambda nodes: tuple(map(intern, nodes)),
    ("table", "columns"): lambda rows: tuple(map(_column, rows)),
    ("table", "past"): lambda rows: tuple(PastColumn(_column(row[:-1]), row[-1]) for row in rows),
    ("table", "key"): tuple,
    ("table", "partition_key"): tuple,
    ("index", "columns"): tuple,
    ("index", "status"): IndexStatus,
    ("removal", "of"): ObjectKind,
    ("removal", "nodes"): tuple,
}


def _defaults(kind: type[CatalogObject]) -> list[tuple[str, object]]:
    """The fields of a row with their defaults; a field without one has a value of its own."""
    return [
        (
            each.name,
            each.default_factory()
            if each.default_factory is not MISSING
            else (object() if each.default is MISSING else each.default),
        )
        for each in fields(kind)
    ]


_FIELDS = {
    name: [(field, default, _TO_ROW.get((name, field))) for field, default in _defaults(kind)]
    for name, kind in _KINDS.items()
}
_CONVERTED = {
    name: [(field, convert) for (of, field), convert in _FROM_ROW.items() if of == name]
    for name in _KINDS
}


def encode_object(of: CatalogObject) -> dict[str, Any]:
    """The row of an object, without its kind."""
    row = {}
    for name, default, convert in _FIELDS[of.kind]:
        value = getattr(of, name)
        if value != default:
            row[name] = value if convert is None else convert(value)
    return row


def decode_object(kind: str, row: dict[str, Any]) -> CatalogObject:
    """The opposite of `encode_object`; changes the row."""
    for name, convert in _CONVERTED[kind]:
        if name in row:
            row[name] = convert(row[name])
    if "settings" in row:
        # Many versions of many objects have the same names.
        row["settings"] = {intern(name): value for name, value in row["settings"].items()}
    return _KINDS[kind](**row)


# --- updates --------------------------------------------------------------------------------


def encode_update(update: CatalogUpdate) -> bytes:
    """The bytes of an update; raises `UpdateTooLarge`."""
    row = {
        "format": CATALOG_FORMAT,
        "version": update.version,
        "delay_ms": update.delay_ms,
        "changes": [_change_row(change) for change in update.changes],
    }
    data = _encode(row).encode()
    if len(data) > UPDATE_BYTES_MAX:
        largest = max(update.changes, key=lambda change: len(_encode(_change_row(change))))
        raise UpdateTooLarge(len(data), UPDATE_BYTES_MAX, _describe(largest))
    return data


def decode_update(data: bytes, source: str = "catalog update") -> CatalogUpdate:
    """An update from its bytes; errors name the source."""
    row = _parsed(data, source)
    try:
        changes = tuple(map(_change, row["changes"]))
        return CatalogUpdate(row["version"], row["delay_ms"], changes)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise DamagedFile(source, 0, f"is not an update of the catalog: {error!r}") from error


def _change_row(change: CatalogChange) -> dict[str, Any]:
    if isinstance(change, PutObject):
        row = {"put": change.object.kind, **encode_object(change.object)}
        row.pop("updated", None)
        return row
    if isinstance(change, RemoveObject):
        return {"remove": change.id}
    if isinstance(change, SetNextId):
        return {"next_id": change.id}
    return {"default_zone": change.id}


def _change(row: dict[str, Any]) -> CatalogChange:
    kind = row.pop("put", None)
    if kind is not None:
        return PutObject(decode_object(kind, row))
    ((name, number),) = row.items()
    if name == "remove":
        return RemoveObject(number)
    if name == "next_id":
        return SetNextId(number)
    if name == "default_zone":
        return SetDefaultZoneId(number)
    raise ValueError(name)


def _describe(change: CatalogChange) -> str:
    if isinstance(change, PutObject):
        return f"{change.object.kind} {change.object.name}"
    return str(change)


def _parsed(data: bytes, source: str) -> dict[str, Any]:
    """An object with a format version that this build reads."""
    try:
        row = json.loads(data)
        number = row["format"]
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise DamagedFile(source, 0, f"has no format version: {error!r}") from error
    if not isinstance(number, int) or not 1 <= number <= CATALOG_FORMAT:
        raise UnsupportedVersion(source, number, CATALOG_FORMAT)
    return dict(row)


# --- snapshots ------------------------------------------------------------------------------


def snapshot_chunks(catalog: Catalog, *, chunk_bytes: int = CHUNK_BYTES_MAX) -> Iterator[bytes]:
    """The snapshot of a catalog, chunk by chunk."""
    lines: list[bytes] = []
    size_bytes = 0
    for row in _snapshot_rows(catalog):
        line = _encode(row).encode() + b"\n"
        if lines and size_bytes + len(line) > chunk_bytes:
            yield b"".join(lines)
            lines, size_bytes = [], 0
        lines.append(line)
        size_bytes += len(line)
    yield b"".join(lines)


def _snapshot_rows(catalog: Catalog) -> Iterator[dict[str, Any]]:
    yield {
        "format": CATALOG_FORMAT,
        "version": catalog.version,
        "activation": catalog.activation,
        "next_id": catalog.next_id,
        "default_zone": catalog.default_zone_id,
        "objects": len(catalog.objects),
    }
    for each in sorted(catalog.objects):
        of = catalog.objects[each]
        yield {"kind": of.kind, **encode_object(of)}


class SnapshotDecoder:
    """Makes a catalog from the chunks of a snapshot, in order; errors name the source."""

    def __init__(self, source: str = "catalog snapshot") -> None:
        self._source = source
        self._header: dict[str, Any] | None = None
        self._builder = CatalogBuilder(Catalog())
        self._objects = 0

    def feed(self, chunk: bytes) -> None:
        """The next chunk."""
        lines = iter(chunk.splitlines())
        try:
            if self._header is None:
                self._header = _parsed(next(lines, b""), self._source)
                self._builder.next_id = self._header["next_id"]
                self._builder.default_zone_id = self._header["default_zone"]
            for line in lines:
                row = json.loads(line)
                self._builder.put(decode_object(row.pop("kind"), row))
                self._objects += 1
        except (AttributeError, KeyError, RecursionError, TypeError, ValueError) as error:
            raise DamagedFile(self._source, 0, f"has an invalid line: {error!r}") from error

    def finish(self) -> Catalog:
        """The catalog, after the last chunk."""
        header = self._header
        if header is None or header.get("objects") != self._objects:
            wanted = header.get("objects") if header is not None else "a header"
            raise DamagedFile(self._source, 0, f"ends after {self._objects} objects, not {wanted}")
        try:
            return self._builder.build(header["version"], header["activation"])
        except KeyError as error:
            raise DamagedFile(self._source, 0, f"has no {error}") from error


def decode_snapshot(chunks: Iterable[bytes], source: str = "catalog snapshot") -> Catalog:
    """The catalog of a snapshot."""
    decoder = SnapshotDecoder(source)
    for chunk in chunks:
        decoder.feed(chunk)
    return decoder.finish()
