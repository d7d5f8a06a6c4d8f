"""Scans of tables: what they read stays until they end, and they send what is stored."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from lithify.catalog.format import decode_object
from lithify.catalog.objects import TableDescriptor
from lithify.catalog_compaction.scan_holds import HOLD_MS
from lithify.clock import SystemClock
from lithify.tables.rows import decode_row
from tests.http.cluster_node import ClusterNode

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ORDERS = {
    "name": "orders",
    "columns": [{"name": "id", "type": "int32"}, {"name": "note", "type": "string"}],
    "key": ["id"],
    "zone": "z",
}
SCAN = "/tables/scans/s1"


class LaterClock(SystemClock):
    """A clock that a test puts forward."""

    later_ms = 0

    def now_ms(self) -> int:
        return super().now_ms() + self.later_ms


@pytest.fixture
def clock() -> LaterClock:
    return LaterClock()


@pytest.fixture
def node(tmp_path: Path, clock: LaterClock) -> Iterator[ClusterNode]:
    with ClusterNode(tmp_path, clock=clock) as opened:
        opened.call("POST", "/catalog/apply", content="[zones.z]\npartitions = 2\n")
        opened.call("POST", "/tables", json=ORDERS)
        put(opened, 1, "a")
        yield opened


def put(node: ClusterNode, number: int, note: str) -> None:
    node.call("POST", "/tables/orders/rows", json={"id": number, "note": note})


def hold(node: ClusterNode, **more: Any) -> Any:
    return node.call("POST", f"{SCAN}/hold", json={"table": "orders", "owner": "test", **more})


def stored(node: ClusterNode, held: Any) -> list[dict[str, Any]]:
    """The rows of all pages of all partitions."""
    table = decode_object("table", dict(held["table"]))
    assert isinstance(table, TableDescriptor)
    found = []
    for number in range(held["partitions"]):
        path = f"{SCAN}/partitions/{number}/rows?start={table.id:08x}&end={table.id + 1:08x}"
        page = node.ask("GET", path).content
        more, count = struct.unpack_from("<II", page)
        assert not more
        lengths = np.frombuffer(page, "<u4", 2 * count, 8).tolist()
        at = 8 + 8 * count + sum(lengths[:count])
        for length in lengths[count:]:
            found.append(decode_row(table, page[at : at + length]))
            at += length
        assert at == len(page)
    return found


def pins(node: ClusterNode) -> list[tuple[str, int, str]]:
    return [
        (each["name"], each["version"], each["owner"]) for each in node.call("GET", "/catalog/pins")
    ]


def test_a_scan_reads_one_moment_and_pins_its_version(node: ClusterNode) -> None:
    held = hold(node)
    put(node, 1, "b")
    put(node, 2, "c")
    assert stored(node, held) == [{"id": 1, "note": "a"}]
    assert pins(node) == [("scan-s1", held["version"], "test")]
    assert hold(node, at=str(held["timestamp"])) == held, "renewed"
    node.call("POST", f"{SCAN}/release")
    assert pins(node) == []
    node.refused(404, "GET", f"{SCAN}/partitions/0")
    again = hold(node, at=str(held["timestamp"]))
    assert stored(node, again) == [{"id": 1, "note": "a"}], "it can still be read"


def test_a_version_is_read_as_it_was_last_in_force(node: ClusterNode) -> None:
    before = hold(node)
    node.call("POST", f"{SCAN}/release")
    put(node, 1, "b")
    change = {"add": [{"name": "more", "type": "int8", "default": 3}]}
    node.call("POST", "/tables/orders/columns", json=change)
    put(node, 2, "c")
    held = hold(node, version=before["version"])
    assert held["version"] == before["version"]
    assert [row[1] for row in held["table"]["columns"]] == ["id", "note"]
    assert stored(node, held) == [{"id": 1, "note": "b"}]
    node.call("POST", f"{SCAN}/release")
    assert len(stored(node, hold(node, version=held["version"] + 1))) == 2
    body = {"table": "orders", "version": 10**6}
    assert (
        node.refused(404, "POST", "/tables/scans/s2/hold", json=body)[0] == "CatalogVersionNotFound"
    )


def test_a_scan_holds_the_low_watermark_until_its_last_part_was_read(
    node: ClusterNode, clock: LaterClock
) -> None:
    held = hold(node)
    tables = node.node.cluster.tables
    assert tables is not None
    put(node, 1, "b")
    clock.later_ms = 700_000
    raising = node.node.cluster.call(tables.low_watermark.update)
    put(node, 1, "c")
    assert tables.low_watermark.value < held["timestamp"]
    assert stored(node, held) == [{"id": 1, "note": "a"}]
    node.call("POST", f"{SCAN}/parts/0?of=2")
    node.call("POST", f"{SCAN}/parts/0?of=2")
    assert not raising.done()
    node.call("POST", f"{SCAN}/parts/1?of=2")
    raising.result(60)
    assert tables.low_watermark.value > held["timestamp"]
    body = {"table": "orders", "at": str(held["timestamp"])}
    assert node.refused(410, "POST", f"{SCAN}/hold", json=body)[0] == "TimeTooOld"
    assert pins(node) == []


def test_a_scan_that_is_not_renewed_ends(node: ClusterNode, clock: LaterClock) -> None:
    hold(node)
    scans = node.node.cluster.scans
    assert scans is not None

    async def due() -> None:
        assert scans.get("s1").expiry is not None
        scans.expire("s1")

    clock.later_ms = HOLD_MS - 60_000
    assert len(pins(node)) == 1
    node.node.cluster.ask(due)
    node.refused(404, "GET", f"{SCAN}/partitions/0")
    clock.later_ms = HOLD_MS + 1
    assert pins(node) == []


def test_the_files_of_a_partition_have_the_revision(node: ClusterNode) -> None:
    hold(node)
    found = [node.call("GET", f"{SCAN}/partitions/{number}") for number in (0, 1)]
    (whole,) = [each for each in found if each["revision"]]
    (empty,) = [each for each in found if not each["revision"]]
    assert empty["files"] is None
    assert whole["files"]["index"] >= whole["revision"]
    put(node, 1, "b")
    assert [node.call("GET", f"{SCAN}/partitions/{number}") for number in (0, 1)] == found


def test_invalid_scans_are_refused(node: ClusterNode) -> None:
    body = {"table": "orders", "version": 1, "at": "2026-01-01"}
    assert "not at both" in node.refused(400, "POST", f"{SCAN}/hold", json=body)[1]
    body = {"table": "none"}
    assert node.refused(404, "POST", f"{SCAN}/hold", json=body)[0] == "ObjectNotFound"
    assert node.refused(400, "POST", "/tables/scans/s%201/hold", json=body)
    held = hold(node)
    other = {"table": "orders", "at": str(held["timestamp"] - 1)}
    assert "not at" in node.refused(400, "POST", f"{SCAN}/hold", json=other)[1]
    assert node.refused(400, "GET", f"{SCAN}/partitions/0/rows?start=x&end=")
