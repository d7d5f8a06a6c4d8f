"""Scans of tables by other programs, such as Spark jobs (`lithify/spark/tables`), over HTTP.

| path                                    |                                                       |
|-----------------------------------------|-------------------------------------------------------|
| /tables/scans/ID/hold                   | POST {"table", "at", "version", "owner"}: begin or    |
|                                         | renew the scan with this id, which the client draws   |
| /tables/scans/ID/partitions/N           | GET: the files of a partition on this node            |
| /tables/scans/ID/partitions/N/rows      | GET: a page of its keys and values as they are stored |
| /tables/scans/ID/parts/K                | POST `?of=N`: part K of N was read                    |
| /tables/scans/ID/release                | POST: end the scan                                    |

The answer to `hold` has the moment that is read, the table as of then, and how often to renew.

`rows` takes `?start=` and `?end=`, both hexadecimal. A page is, little-endian: 1 if there are more,
4 bytes; the number of rows, 4; the lengths of all keys, 4 each; those of all values; all keys; all
values.

No `from __future__ import annotations` in modules with routes: FastAPI reads them at run time.
"""

import struct
from functools import partial
from typing import Annotated, Any

import numpy as np
from fastapi import APIRouter, Depends, Path, Response
from pydantic import BaseModel, ConfigDict, Field

from lithify.catalog.format import encode_object
from lithify.catalog.objects import ZoneDescriptor
from lithify.catalog_compaction.scan_holds import HOLD_MS, ScanHolds
from lithify.errors import InvalidInput
from lithify.http.cluster.access import ClusterDep, in_cluster
from lithify.http.tables.access import parse_at
from lithify.metastore.errors import MetastoreUnavailable
from lithify.metastore.metastore import Rows
from lithify.raft.errors import GroupAbsent, MemberReadsOnly
from lithify.tables.partition_files import partition_files

__all__ = ["router"]

router = APIRouter(prefix="/tables/scans", tags=["tables"])

_HEAD = struct.Struct("<II")


class ScanHold(BaseModel):
    """A scan to begin, or to renew."""

    model_config = ConfigDict(extra="forbid", strict=True)

    table: str
    at: str | None = None
    version: int | None = Field(default=None, ge=0)
    owner: str = Field(default="", max_length=200)


async def _scans(cluster: ClusterDep) -> ScanHolds:
    if cluster.scans is None:
        raise MemberReadsOnly(cluster.name, cluster.node.others)
    return cluster.scans


ScanName = Annotated[str, Path(pattern=r"^[0-9A-Za-z_-]{1,64}$")]
ScansDep = Annotated[ScanHolds, Depends(_scans)]


@router.post("/{scan}/hold")
async def hold(
    scan: ScanName, asked: ScanHold, cluster: ClusterDep, scans: ScansDep
) -> dict[str, Any]:
    """Begin or renew a scan."""
    if asked.at is not None and asked.version is not None:
        raise InvalidInput("a scan reads at a time or at a version, not at both")
    at = parse_at(asked.at)

    async def held() -> dict[str, Any]:
        found = await scans.hold(scan, asked.table, at=at, version=asked.version, owner=asked.owner)
        catalog, table = found.reader.catalog, found.table
        return {
            "timestamp": found.timestamp,
            "version": catalog.version,
            "table": encode_object(table),
            "indexes": [encode_object(index) for index in catalog.indexes_of(table.id)],
            "partitions": catalog.get(ZoneDescriptor, table.zone_id).partitions,
            "renew_ms": min(HOLD_MS, scans.tables.low_watermark.read_life_ms) // 4,
        }

    return await in_cluster(cluster, held)


@router.post("/{scan}/parts/{part}", status_code=204)
async def finish(
    scan: ScanName, part: int, of: int, cluster: ClusterDep, scans: ScansDep
) -> Response:
    """A part was read; the last one ends the scan."""
    await in_cluster(cluster, partial(scans.finish, scan, part, of))
    return Response(status_code=204)


@router.post("/{scan}/release", status_code=204)
async def release(scan: ScanName, cluster: ClusterDep, scans: ScansDep) -> Response:
    """End a scan."""
    await in_cluster(cluster, partial(scans.release, scan))
    return Response(status_code=204)


@router.get("/{scan}/partitions/{number}")
async def partition(
    scan: ScanName, number: int, cluster: ClusterDep, scans: ScansDep
) -> dict[str, Any]:
    """The revision of a partition that the scan reads, and its files if it is on this node."""

    async def found() -> dict[str, Any]:
        held = scans.get(scan)
        store = await scans.tables.hosting.ready((held.table.zone_id, number))
        revision = await held.reader.revision_of((held.table.zone_id, number), store)
        files = None
        if revision:
            try:
                files = (await partition_files(store, revision)).to_json()
            except (GroupAbsent, MetastoreUnavailable):
                # The group has no member here.
                files = None
        return {"revision": revision, "files": files}

    return await in_cluster(cluster, found)


@router.get("/{scan}/partitions/{number}/rows")
async def rows(
    scan: ScanName, number: int, cluster: ClusterDep, scans: ScansDep, start: str, end: str
) -> Response:
    """A page of keys and values."""
    try:
        low, high = bytes.fromhex(start), bytes.fromhex(end)
    except ValueError as error:
        raise InvalidInput(f"start and end must be hexadecimal: {error}") from error

    async def page() -> Rows:
        held = scans.get(scan)
        return await held.reader.key_range((held.table.zone_id, number), low, high)

    found = await in_cluster(cluster, page)
    keys, values = [row.key for row in found.rows], [row.value for row in found.rows]
    lengths = np.fromiter(map(len, [*keys, *values]), "<u4").tobytes()
    head = _HEAD.pack(found.more, len(keys))
    body = b"".join((head, lengths, *keys, *values))
    return Response(body, media_type="application/octet-stream")
