"""Stores and blobs as rows of output; commands and HTTP use the same ones.

`info_row` of a blob has `expiry_ms` null and `ttl` -1 for never. An ETag consists of the content's
CRC and size and the time of the put: it is the same in every replica and after every compaction,
and differs for another content with the same id.

`store_row` opens its store and `plan_row` takes as long as judging does: call them in a thread.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from lithify.blobs.definition import setting_names
from lithify.blobs.errors import BlobStoreNotFound
from lithify.blobs.records import NEVER_MS
from lithify.blobs.stores import ONE_SEGMENT
from lithify.errors import InvalidInput, LithifyError
from lithify.ownership import NotOwner

if TYPE_CHECKING:
    from lithify.blobs.content.reader import BlobInfo
    from lithify.blobs.statistics.statistics import StoreStatistics
    from lithify.blobs.store import BlobStore
    from lithify.blobs.stores import BlobStores
    from lithify.compaction.tasks.jobs import Jobs

__all__ = [
    "etag_of",
    "info_row",
    "listed_row",
    "plan_row",
    "settings_row",
    "statistics_row",
    "store_row",
    "ttl_ms_of",
    "ttl_s_of",
]

TTL_S_MAX = 2**40
"""34,000 years."""

_SECONDS = re.compile(r"-?[0-9]{1,20}")


def etag_of(info: BlobInfo) -> str:
    """The ETag of a blob's content, with its quotation marks."""
    put = info.put
    return f'"{put.content_crc:08x}-{put.size:x}-{put.created_ms:x}"'


def ttl_s_of(info: BlobInfo, now_ms: int) -> int:
    """The remaining seconds of a blob, rounded up; -1: it never expires."""
    if info.expiry_ms == NEVER_MS:
        return -1
    return max(0, -(-(info.expiry_ms - now_ms) // 1000))


def ttl_ms_of(ttl: str | int) -> int | None:
    """Parse a time to live in seconds; None: it never expires."""
    seconds = int(ttl) if _SECONDS.fullmatch(str(ttl)) else 0
    if seconds != -1 and not 1 <= seconds <= TTL_S_MAX:
        shown = f"{str(ttl)[:40]!r} must be whole seconds"
        raise InvalidInput(f"ttl {shown}, 1 … {TTL_S_MAX}, or -1 for never")
    return None if seconds < 0 else seconds * 1000


def info_row(info: BlobInfo, now_ms: int) -> dict[str, Any]:
    """All fields of a blob except its content."""
    put = info.put
    return {
        "id": put.blob_id,
        "size": put.size,
        "crc32c": f"{put.content_crc:08x}",
        "etag": etag_of(info),
        "content_type": put.content_type,
        "service_id": put.service,
        "owner_id": put.owner,
        "metadata": dict(put.metadata),
        "created_ms": put.created_ms,
        "changed_ms": info.changed_ms,
        "expiry_ms": None if info.expiry_ms == NEVER_MS else info.expiry_ms,
        "ttl": ttl_s_of(info, now_ms),
        "deleted": info.deleted,
        "expired": now_ms > info.expiry_ms,
        "life_version": info.life_version,
        "position": info.position,
    }


def store_row(stores: BlobStores, name: str) -> dict[str, Any]:
    """The definition of a store and how full it is."""
    definition = stores.definition(name)
    row = {"store": name, **definition.row(), "used_bytes": stores.get(name).used_bytes}
    if definition.capacity_bytes == definition.segment_bytes:
        row["warning"] = ONE_SEGMENT
    return row


def listed_row(stores: BlobStores, name: str) -> dict[str, Any]:
    """The same for a list: a store that cannot be opened has `error`, and `used_bytes` null.

    So has `used_bytes` a store of another node, which is `node`.
    """
    try:
        return store_row(stores, name)
    except BlobStoreNotFound:
        raise
    except NotOwner as error:
        row = stores.definition(name).row()
        return {"store": name, **row, "used_bytes": None, "node": error.owner}
    except LithifyError as error:
        row = stores.definition(name).row()
        return {"store": name, **row, "used_bytes": None, "error": str(error)}


def settings_row(stores: BlobStores, name: str) -> dict[str, Any]:
    """The store's own settings and the effective ones, by name."""
    own = stores.definition(name).settings
    return {"store": name, "own": own, "applied": setting_names(stores.applied(name))}


def plan_row(
    name: str, store: BlobStore, policy: str | None, jobs: Jobs, *, waits: bool = True
) -> dict[str, Any]:
    """What a run would do now: `text` for people, `plan` for programs, or why nothing.

    `waits` is that of `BlobCompaction.plan`.
    """
    found = store.compaction.plan(policy, jobs, waits=waits)
    return {
        "store": name,
        "text": found.explain(),
        "plan": found.plan.to_json(),
        "declined": found.declined_row(),
    }


def statistics_row(name: str, found: StoreStatistics, *, forecast: bool) -> dict[str, Any]:
    """Statistics, with `text` for people; without a forecast only the present."""
    row = {"store": name, **found.as_dict(), "text": found.explain()}
    if not forecast:
        del row["forecast"], row["text"]
        for segment in row["segments"]:
            del segment["ending_bytes"], segment["ending_records"]
    return row
