"""A scan of a table at a running node, from the planner of a query and from its tasks.

    scan = NodeScan("http://node:8080", token, "orders", new_name())
    moment = scan.hold("", None)                # the table as of the moment that is read
    with scan.held(moment.timestamp):           # in a task; renewed in a thread
        ...

The routes are in `lithify/http/tables/scans.py`. A value that can be pickled.
"""

from __future__ import annotations

import getpass
import json
import socket
import struct
import threading
import urllib.request
import uuid
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import numpy as np

from lithify.catalog.format import decode_object
from lithify.catalog.objects import IndexDescriptor, TableDescriptor
from lithify.spark.place import TIMEOUT_S, NodeRefused, ask_node
from lithify.tables.partition_files import PartitionFiles

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

__all__ = ["NodeScan", "ScanMoment", "new_name"]

_HEAD = struct.Struct("<II")


def new_name() -> str:
    """A name of a scan, which no other one has."""
    return uuid.uuid4().hex


@dataclass(frozen=True, slots=True)
class ScanMoment:
    """What a scan reads."""

    timestamp: int
    version: int
    """Of the catalog."""
    table: TableDescriptor
    indexes: tuple[IndexDescriptor, ...]
    partitions: int
    """Of the zone of the table."""
    renew_s: float = 0.0


@dataclass(frozen=True, slots=True)
class NodeScan:
    """See the module."""

    node: str
    token: str
    table: str
    name: str

    def hold(self, at: str, version: int | None) -> ScanMoment:
        """Begin the scan, or renew its hold."""
        body: dict[str, Any] = {"table": self.table, "owner": _owner()}
        if at:
            body["at"] = at
        if version is not None:
            body["version"] = version
        found = ask_node(self._url("hold"), self.token, json.dumps(body).encode())
        table = decode_object("table", found["table"])
        indexes = [decode_object("index", row) for row in found["indexes"]]
        assert isinstance(table, TableDescriptor)
        return ScanMoment(
            found["timestamp"],
            found["version"],
            table,
            tuple(each for each in indexes if isinstance(each, IndexDescriptor)),
            found["partitions"],
            found["renew_ms"] / 1000,
        )

    @contextmanager
    def held(self, timestamp: int) -> Iterator[None]:
        """Hold the scan, while the block runs."""
        ended, renew_s = threading.Event(), self.hold(str(timestamp), None).renew_s

        def renew() -> None:
            while not ended.wait(renew_s):
                try:
                    self.hold(str(timestamp), None)
                except NodeRefused:
                    # What the task still needs fails by itself, if it is gone.
                    continue

        renewal = threading.Thread(target=renew, name="scan-renewal", daemon=True)
        renewal.start()
        try:
            yield
        finally:
            ended.set()
            renewal.join()

    def files(self, number: int) -> tuple[int, PartitionFiles | None]:
        """The revision of a partition, 0 if it is empty, and its files if that node has them."""
        found = ask_node(self._url(f"partitions/{number}"), self.token)
        files = found["files"]
        return found["revision"], None if files is None else PartitionFiles.from_json(files)

    def pages(
        self, number: int, low: bytes, high: bytes
    ) -> Iterator[tuple[list[bytes], NDArray[np.uint8], NDArray[np.int64]]]:
        """The keys of a range, their values in one array, and where each ends."""
        more = True
        while more:
            query = f"start={low.hex()}&end={high.hex()}"
            page = self._read(f"partitions/{number}/rows?{query}")
            more_flag, count = _HEAD.unpack_from(page)
            lengths = np.frombuffer(page, "<u4", 2 * count, _HEAD.size).astype(np.int64)
            stops = _HEAD.size + 8 * count + np.cumsum(lengths)
            more = bool(more_flag)
            if not count:
                continue
            bounds = [_HEAD.size + 8 * count, *stops[:count].tolist()]
            keys = [page[a:b] for a, b in pairwise(bounds)]
            begin = bounds[-1]
            yield keys, np.frombuffer(page, np.uint8, offset=begin), stops[count:] - begin
            low = keys[-1] + b"\0"

    def finish(self, part: int, parts: int) -> None:
        """A part was read."""
        ask_node(self._url(f"parts/{part}?of={parts}"), self.token, b"")

    def release(self) -> None:
        """End the scan."""
        ask_node(self._url("release"), self.token, b"")

    def _url(self, rest: str) -> str:
        return f"{self.node}/tables/scans/{quote(self.name, safe='')}/{rest}"

    def _read(self, rest: str) -> bytes:
        headers = {"Authorization": f"Bearer {self.token}"} if self.token else {}
        # The scheme of the node was checked to be http or https.
        request = urllib.request.Request(self._url(rest), None, headers)  # noqa: S310
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:  # noqa: S310
                return bytes(answer.read())
        except OSError as error:
            raise NodeRefused(f"{self.node} does not answer: {error}") from error


def _owner() -> str:
    try:
        user = getpass.getuser()
    except (OSError, KeyError):
        user = "unknown"
    return f"Spark job of {user} on {socket.gethostname()}"[:200]
