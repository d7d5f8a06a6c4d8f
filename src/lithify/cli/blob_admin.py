"""Where the commands on blobs work: at a node, over HTTP, or on a directory nobody serves.

Both ways give the same rows, those of `blobs/shown.py`. A node has runs done by its worker; on a
directory this process opens a Spark session of its own, when it is first needed.
"""

# ruff: noqa: PLC0415  (commands import what they need when they run, see main.py)

from __future__ import annotations

import re
import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from lithify.cli.admin import NodeNotReached, RemoteNode, open_place
from lithify.cli.compaction_admin import (
    POLL_S,
    known_requests,
    nothing_runs,
    spark_jobs,
    wait_query,
    watched,
)
from lithify.cli.spark_options import SparkOptions
from lithify.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from lithify.blobs.answer import Include
    from lithify.blobs.spool import Readable
    from lithify.blobs.stores import BlobStores
    from lithify.compaction.jobs import Jobs
    from lithify.node.node import Node
    from lithify.pipeline.target import SparkTarget

    Row = dict[str, Any]
    Watch = Callable[[Row], None]

__all__ = ["BlobsAdmin", "NewBlob", "open_blobs"]

PIECE_BYTES = 2**20
PAGE_BLOBS = 1000

_TOKEN = re.compile(r"[-!#$%&'*+.^_`|~0-9A-Za-z]+")
"""What the name of a header may be."""


@dataclass(frozen=True, slots=True)
class NewBlob:
    """What a put says of its blob; `ttl_s` -1 is never."""

    service: str
    owner: str
    content_type: str
    ttl_s: int
    metadata: dict[str, str] = field(default_factory=dict)


class BlobsAdmin(Protocol):
    """What can be done with blob stores from afar."""

    def create(self, name: str, shape: Row, namespace: str) -> Row:
        """Create a store; `shape` as the body of the request over HTTP."""

    def drop(self, name: str) -> None:
        """Delete a store."""

    def stores(self, namespace: str) -> list[Row]:
        """The stores of a namespace; one that cannot be opened has `error`."""

    def put(self, name: str, content: Readable, new: NewBlob) -> Row:
        """Put a blob."""

    def get(self, name: str, blob_id: str, include: str) -> Iterator[bytes]:
        """Its content in pieces."""

    def info(self, name: str, blob_id: str, include: str) -> Row:
        """Everything else about it."""

    def delete(self, name: str, blob_id: str) -> Row:
        """Delete a blob."""

    def ttl(self, name: str, blob_id: str, ttl_s: int) -> Row:
        """Let it expire so many seconds from now."""

    def undelete(self, name: str, blob_id: str) -> Row:
        """Take a delete back."""

    def blobs(self, name: str, include: str) -> Iterator[Row]:
        """The blobs of a store."""

    def store(self, name: str) -> Row:
        """What a store is, and how full."""

    def statistics(self, name: str) -> Row:
        """What of it is valid, and until when."""

    def erase(self, name: str) -> Row:
        """How erasing stands."""

    def replicas(self, name: str) -> list[Row]:
        """The other replicas of a store, and how it goes with each."""

    def set_replicas(self, name: str, urls: list[str]) -> None:
        """Replicate with these stores, and with no others."""

    def plan(self, name: str, policy: str | None, *, waits: bool) -> Row:
        """What a run would do."""

    def run(self, name: str, policy: str | None, watch: Watch, *, waits: bool) -> Row:
        """Compact and wait for the end; the status after it.

        A run that does not wait is refused while another one has the store or its disk.
        """

    def status(self, name: str) -> Row:
        """How the last run went, or how far it is."""

    def cancel(self, name: str) -> None:
        """Stop the run that is going on, and forget those that wait."""

    def history(self, name: str, limit: int) -> list[Row]:
        """The reports of the last runs, newest first."""

    def update(self, name: str, changes: Row) -> Row:
        """Change settings, `set` and `unset` as over HTTP; those of the store and all that hold."""


@contextmanager
def open_blobs(
    data: str | None,
    url: str | None,
    spark: SparkOptions | None = None,
    *,
    create: bool = False,
) -> Iterator[BlobsAdmin]:
    """What the options name; `create` makes a data directory that is not there."""
    with open_place(data, url, spark=spark, create=create) as place, ExitStack() as stack:
        if isinstance(place, RemoteNode):
            yield _Remote(place)
        else:
            yield _Local(place, (spark or SparkOptions()).target(), stack)


class _Remote:
    def __init__(self, node: RemoteNode) -> None:
        self._node = node

    def create(self, name: str, shape: Row, namespace: str) -> Row:
        return self._row("PUT", f"{_path(name)}?{_query(namespace=namespace)}", shape)

    def drop(self, name: str) -> None:
        self._node.call("DELETE", _path(name))

    def stores(self, namespace: str) -> list[Row]:
        rows: list[Row] = self._node.call("GET", f"/blobs?{_query(namespace=namespace)}")
        return rows

    def put(self, name: str, content: Readable, new: NewBlob) -> Row:
        headers = {
            "x-lithify-service-id": new.service,
            "x-lithify-owner-id": new.owner,
            "x-lithify-content-type": new.content_type,
            "x-lithify-ttl": str(new.ttl_s),
            **{f"x-lithify-um-{key}": value for key, value in new.metadata.items()},
        }
        for key, value in headers.items():
            if not _TOKEN.fullmatch(key):
                shown = repr(key.removeprefix("x-lithify-um-"))
                raise InvalidInput(f"metadata name {shown} has characters that no header can have")
            if not value.isprintable():
                raise InvalidInput(f"{key} {value!r} has characters that no header can have")
        pieces = iter(lambda: content.read(PIECE_BYTES), b"")
        row: Row = self._node.upload(_path(name)[1:], pieces, headers)
        return row

    def get(self, name: str, blob_id: str, include: str) -> Iterator[bytes]:
        from http.client import HTTPException

        path = f"{_path(name, blob_id)}?{_query(include=include)}"[1:]
        with self._node.open("GET", path) as answer:
            try:
                while piece := answer.read(PIECE_BYTES):
                    yield piece
            except (OSError, HTTPException) as error:
                raise NodeNotReached(self._node.url, f"it ended: {error}") from error
            # The library takes an end that came too early for an end.
            if answer.length:
                raise NodeNotReached(self._node.url, f"{answer.length} bytes are missing")

    def info(self, name: str, blob_id: str, include: str) -> Row:
        return self._row("GET", f"{_path(name, blob_id)}/info?{_query(include=include)}")

    def delete(self, name: str, blob_id: str) -> Row:
        return self._row("DELETE", _path(name, blob_id))

    def ttl(self, name: str, blob_id: str, ttl_s: int) -> Row:
        return self._row("PUT", f"{_path(name, blob_id)}/ttl", {"ttl": ttl_s})

    def undelete(self, name: str, blob_id: str) -> Row:
        return self._row("PUT", f"{_path(name, blob_id)}/undelete")

    def blobs(self, name: str, include: str) -> Iterator[Row]:
        after: int | None = -1
        while after is not None:
            query = _query(include=include, after=after, limit=PAGE_BLOBS)
            page = self._row("GET", f"{_path(name)}/list?{query}")
            yield from page["blobs"]
            after = page["next"]

    def store(self, name: str) -> Row:
        return self._row("GET", _path(name))

    def statistics(self, name: str) -> Row:
        return self._row("GET", f"{_path(name)}/statistics?forecast=true", timeout_s=None)

    def erase(self, name: str) -> Row:
        return self._row("GET", f"{_path(name)}/erase")

    def replicas(self, name: str) -> list[Row]:
        rows: list[Row] = self._node.call("GET", f"{_path(name)}/replicas")
        return rows

    def set_replicas(self, name: str, urls: list[str]) -> None:
        self._node.call("PUT", f"{_path(name)}/replicas", urls)

    def plan(self, name: str, policy: str | None, *, waits: bool) -> Row:
        body = {"dry_run": True, "policy": policy}
        path = f"{_path(name)}/compaction{wait_query(waits=waits)}"
        return self._row("POST", path, body, timeout_s=None)

    def run(self, name: str, policy: str | None, watch: Watch, *, waits: bool) -> Row:
        asked = f"{_path(name)}/compaction{wait_query(waits=waits)}"
        row = self._row("POST", asked, {"policy": policy})
        path = f"{_path(name)}/compaction?{_query(request=row['request'])}"
        while row["status"] == "RUNNING":
            watch(row)
            time.sleep(POLL_S)
            with known_requests():
                row = self._row("GET", path)
        return row

    def status(self, name: str) -> Row:
        return self._row("GET", f"{_path(name)}/compaction")

    def cancel(self, name: str) -> None:
        self._node.call("DELETE", f"{_path(name)}/compaction")

    def update(self, name: str, changes: Row) -> Row:
        return self._row("PATCH", f"{_path(name)}/settings", changes)

    def history(self, name: str, limit: int) -> list[Row]:
        path = f"{_path(name)}/compaction/history?{_query(limit=limit)}"
        rows: list[Row] = self._node.call("GET", path)
        return rows

    def _row(self, method: str, path: str, body: object = None, **more: Any) -> Row:
        row: Row = self._node.call(method, path, body, **more)
        return row


def _path(name: str, blob_id: str | None = None) -> str:
    from urllib.parse import quote

    below = "" if blob_id is None else f"/{quote(blob_id, safe='')}"
    return f"/blobs/{quote(name, safe='')}{below}"


def _query(**values: object) -> str:
    from urllib.parse import urlencode

    return urlencode(values)


def _include(text: str) -> Include:
    from lithify.blobs.answer import Include

    if text not in list(Include):
        raise InvalidInput(f"include {text!r} must be one of {', '.join(Include)}")
    return Include(text)


class _Local:
    def __init__(self, node: Node, target: SparkTarget, stack: ExitStack) -> None:
        self._stores: BlobStores = node.blobs
        self._topics = node.topics
        self._target = target
        self._stack = stack

    def create(self, name: str, shape: Row, namespace: str) -> Row:
        from lithify.blobs.shown import store_row

        self._stores.create(name, namespace=namespace, **shape)
        return store_row(self._stores, name)

    def drop(self, name: str) -> None:
        self._stores.delete(name)

    def stores(self, namespace: str) -> list[Row]:
        from lithify.blobs.shown import listed_row

        return [listed_row(self._stores, name) for name in self._stores.names(namespace)]

    def put(self, name: str, content: Readable, new: NewBlob) -> Row:
        from lithify.blobs.shown import info_row, ttl_ms_of

        info = self._stores.get(name).put(
            content,
            service=new.service,
            owner=new.owner,
            content_type=new.content_type,
            metadata=new.metadata,
            ttl_ms=ttl_ms_of(new.ttl_s),
        )
        return info_row(info, self._stores.now_ms())

    def get(self, name: str, blob_id: str, include: str) -> Iterator[bytes]:
        with self._stores.get(name).get(blob_id, include=_include(include)) as blob:
            yield from blob

    def info(self, name: str, blob_id: str, include: str) -> Row:
        from lithify.blobs.shown import info_row

        info = self._stores.get(name).head(blob_id, include=_include(include))
        return info_row(info, self._stores.now_ms())

    def delete(self, name: str, blob_id: str) -> Row:
        self._stores.get(name).delete(blob_id)
        return {"id": blob_id}

    def ttl(self, name: str, blob_id: str, ttl_s: int) -> Row:
        from lithify.blobs.shown import ttl_ms_of

        expiry_ms = self._stores.get(name).live_for(blob_id, ttl_ms_of(ttl_s))
        return {"id": blob_id, "expiry_ms": expiry_ms}

    def undelete(self, name: str, blob_id: str) -> Row:
        self._stores.get(name).undelete(blob_id)
        return {"id": blob_id}

    def blobs(self, name: str, include: str) -> Iterator[Row]:
        from lithify.blobs.shown import info_row

        now_ms = self._stores.now_ms()
        for info in self._stores.get(name).list(include=_include(include)):
            yield info_row(info, now_ms)

    def store(self, name: str) -> Row:
        from lithify.blobs.shown import store_row

        return store_row(self._stores, name)

    def statistics(self, name: str) -> Row:
        from lithify.blobs.shown import statistics_row

        return statistics_row(name, self._stores.get(name).statistics(), forecast=True)

    def erase(self, name: str) -> Row:
        from dataclasses import asdict

        return {"store": name, **asdict(self._stores.get(name).erase.status())}

    def replicas(self, name: str) -> list[Row]:
        from dataclasses import asdict

        return [asdict(each) for each in self._stores.get(name).replication.status()]

    def set_replicas(self, name: str, urls: list[str]) -> None:
        self._stores.get(name).replication.set_peers(urls)

    def plan(self, name: str, policy: str | None, *, waits: bool) -> Row:
        from lithify.blobs.shown import plan_row

        return plan_row(name, self._stores.get(name), policy, self._jobs(), waits=waits)

    def run(self, name: str, policy: str | None, watch: Watch, *, waits: bool) -> Row:
        compaction = self._stores.get(name).compaction
        control = watched({"store": name}, watch, waits=waits)
        compaction.run("command", policy, self._jobs(), control)
        return {"store": name, **compaction.status().row()}

    def status(self, name: str) -> Row:
        return {"store": name, **self._stores.get(name).compaction.status().row()}

    def cancel(self, name: str) -> None:
        raise nothing_runs(name)

    def update(self, name: str, changes: Row) -> Row:
        from lithify.blobs.shown import settings_row

        self._stores.update(name, changes["set"], changes["unset"])
        return settings_row(self._stores, name)

    def history(self, name: str, limit: int) -> list[Row]:
        from lithify.compaction.record import report_row

        reports = self._stores.get(name).compaction.history.newest(limit)
        return [{"store": name, **report_row(each)} for each in reports]

    def _jobs(self) -> Jobs:
        from lithify.blobs.compaction import BLOB_TASKS

        return spark_jobs(self._target, BLOB_TASKS, self._stack)
