"""Compaction of the catalog over HTTP: runs, dry runs, snapshots by the same decision, and pins."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from lithify.clock import ManualClock
from lithify.compaction.scheduling.triggers import NOTHING_DUE
from tests.http.cluster_node import ClusterNode
from tests.patience import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

HOUR_S = 3600
COMPACTION = "/catalog/compaction"


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def node(tmp_path: Path, clock: ManualClock) -> Iterator[ClusterNode]:
    with ClusterNode(tmp_path, clock=clock) as opened:
        yield by_request_only(opened)


def by_request_only(node: ClusterNode) -> ClusterNode:
    """A node whose triggers are off; its first run, as the new coordinator, has ended."""
    trimming = node.node.cluster.trimming
    assert trimming is not None
    trimming.observe = lambda: NOTHING_DUE  # type: ignore[method-assign]
    wait_until(lambda: not node.node.queue.is_busy(trimming))
    return node


def wait_an_hour(node: ClusterNode, clock: ManualClock) -> None:
    clock.advance(HOUR_S)
    node.raise_low_watermark()


def tenants(node: ClusterNode, *names: str) -> int:
    """The version of the last of these tenants."""
    version = 0
    for name in names:
        version = node.call("POST", "/catalog/apply", content=f"[tenants.{name}]\n")["version"]
    return version


def run(node: ClusterNode) -> dict[str, Any]:
    """The report of a run."""
    request = node.ask("PUT", COMPACTION).headers["x-lithify-request"]

    def ended() -> dict[str, Any] | None:
        [row] = node.call("GET", f"{COMPACTION}/progress?request={request}")
        return None if row["status"] == "RUNNING" else dict(row)

    wait_until(lambda: ended() is not None)
    found = ended()
    assert found is not None
    assert found["status"] == "SUCCESS", found
    return dict(found["report"])


def earliest(node: ClusterNode) -> int:
    return int(node.call("GET", "/cluster")["catalog"]["earliest"])


def test_a_run_does_what_its_dry_run_says(node: ClusterNode, clock: ManualClock) -> None:
    version = tenants(node, "a", "b", "c")
    wait_an_hour(node, clock)
    [plan] = node.call("POST", f"{COMPACTION}/plan")
    assert plan["plan"] == {
        "policy": "versions",
        "earliest": 0,
        "wanted": version,
        "version": version,
        "latest": version,
    }
    assert [(each["node"], each["replicas"]) for each in plan["nodes"]] == [("n1", 0)]
    assert (plan["aborts"], plan["declined"]) == ([], None)
    assert f"the earliest version is 0 and becomes {version}" in plan["text"]
    assert earliest(node) == 0
    report = run(node)
    assert (report["result"], report["generation_after"]) == ("done", version)
    assert report["dropped"] == {"superseded": [version, 0]}
    wait_until(lambda: earliest(node) == version)
    assert run(node)["result"] == "nothing to do"
    [shown] = [
        each for each in node.call("GET", f"{COMPACTION}/history") if each["trigger"] == "admin"
    ]
    assert shown["run_id"] == report["run_id"]


def test_the_version_in_force_at_the_low_watermark_stays(
    node: ClusterNode, clock: ManualClock
) -> None:
    old = tenants(node, "a", "b")
    wait_an_hour(node, clock)
    tenants(node, "c")
    found = node.call("GET", "/catalog/holds")
    assert found["version"] == old
    assert [each["name"] for each in found["holds"]] == ["low watermark"]
    kind, why = node.refused(409, "POST", f"/catalog/snapshot?version={old + 1}")
    assert (kind, "low watermark (owner n1)" in why) == ("RunRefused", True)
    node.refused(409, "POST", f"/catalog/snapshot?version={old + 1}&force=true")
    assert node.call("POST", f"/catalog/snapshot?version={old}")["made"]


def test_a_pin_keeps_its_version_until_it_is_released_or_expires(
    node: ClusterNode, clock: ManualClock
) -> None:
    first = tenants(node, "a")
    pinned = {"reason": "export", "owner": "me", "ttl_ms": 2 * HOUR_S * 1000}
    assert node.call("PUT", "/catalog/pins/monday", json=pinned)["version"] == first
    assert node.call("PUT", "/catalog/pins/tuesday", json=pinned | {"ttl_ms": 1})
    last = tenants(node, "b", "c")
    wait_an_hour(node, clock)
    [row] = node.call("GET", "/catalog/pins")
    assert (row["name"], row["owner"], row["reason"]) == ("monday", "me", "export")
    kind, why = node.refused(409, "POST", f"/catalog/snapshot?version={last}&force=true")
    assert (kind, "pin monday (owner me: export)" in why) == ("RunRefused", True)
    assert run(node)["generation_after"] == first
    node.call("DELETE", "/catalog/pins/monday")
    assert "no pin monday" in node.refused(404, "DELETE", "/catalog/pins/monday")[1]
    assert run(node)["generation_after"] == last


def test_a_pin_of_a_version_that_is_gone_is_refused(node: ClusterNode, clock: ManualClock) -> None:
    version = tenants(node, "a", "b")
    wait_an_hour(node, clock)
    run(node)
    wait_until(lambda: earliest(node) == version)
    kind, _ = node.refused(410, "PUT", "/catalog/pins/late", json={"version": version - 1})
    assert kind == "CatalogVersionTrimmed"
    node.refused(404, "PUT", "/catalog/pins/late", json={"version": version + 9})
    node.refused(400, "PUT", "/catalog/pins/late", json={"ttl_ms": 0})
    assert node.call("GET", "/catalog/pins") == []


def test_floors_keep_versions_that_nothing_needs(tmp_path: Path, clock: ManualClock) -> None:
    with ClusterNode(tmp_path, clock=clock, catalog_versions_min=2) as node:
        version = tenants(by_request_only(node), "a", "b", "c")
        wait_an_hour(node, clock)
        assert run(node)["generation_after"] == version - 1


def test_metrics_count_the_runs_and_the_versions_that_were_dropped(
    node: ClusterNode, clock: ManualClock
) -> None:
    version = tenants(node, "a", "b")
    wait_an_hour(node, clock)
    run(node)
    text = node.ask("GET", "/metrics").text
    assert f"lithify_catalog_compaction_removed_total {float(version)}" in text
    assert 'lithify_catalog_compaction_runs_total{result="done"} ' in text
