"""The catalog over HTTP: versions, differences, changes as TOML, snapshots."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from lithify.clock import ManualClock
from lithify.hybrid_time import milliseconds
from tests.http.cluster_node import ClusterNode
from tests.patience import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ACME = """
[tenants.acme]
[namespaces."acme/orders"]
[topics."acme/orders/incoming"]
partitions = 2
"""


@pytest.fixture
def node(tmp_path: Path) -> Iterator[ClusterNode]:
    with ClusterNode(tmp_path) as opened:
        yield opened


def names(node: ClusterNode, query: str = "") -> list[str]:
    return [row["name"] for row in node.call("GET", f"/catalog{query}")["objects"]]


def test_definitions_are_applied_once(node: ClusterNode) -> None:
    first = node.call("POST", "/catalog/apply", content=ACME)
    assert first["changed"]
    assert [row["name"] for row in first["differences"]] == [
        "acme",
        "acme/orders",
        "persistent://acme/orders/incoming",
    ]
    assert first["differences"][2]["fields"]["owners"]["after"] == ["n1", "n1"]
    again = node.call("POST", "/catalog/apply", content=ACME)
    assert (again["version"], again["changed"]) == (first["version"], False)
    assert again["differences"] == []


def test_a_dry_run_shows_the_difference_and_changes_nothing(node: ClusterNode) -> None:
    before = node.call("GET", "/catalog")
    planned = node.call("POST", "/catalog/apply?dry_run=true", content=ACME)
    assert [row["change"] for row in planned["differences"]] == ["added"] * 3
    assert planned["differences"][0]["text"].startswith("+ tenant acme")
    assert node.call("GET", "/catalog") == before


def test_versions_are_found_by_number_and_by_time(node: ClusterNode) -> None:
    base = node.call("GET", "/catalog")
    first = node.call("POST", "/catalog/apply", content=ACME)
    node.call("DELETE", "/admin/v2/persistent/acme/orders/incoming/partitions")
    second = node.call("GET", "/catalog")
    topic = "persistent://acme/orders/incoming"
    assert topic in names(node, f"?version={first['version']}")
    assert topic not in names(node, f"?version={base['version']}")
    at_ms = milliseconds(first["activation"])
    if at_ms < milliseconds(second["activation"]):
        assert topic in names(node, f"?at={at_ms}")
    found = node.call("GET", "/catalog", params={"at": "2200-01-01T00:00:00+00:00"})
    assert found["version"] == second["version"]
    rows = node.call("GET", "/catalog/history?limit=2")
    assert [row["version"] for row in rows] == [second["version"], second["version"] - 1]
    assert any(line.startswith("- topic") for row in rows for line in row["changes"])
    path = f"/catalog/diff?a={second['version']}&b={first['version']}"
    assert "added" in {row["change"] for row in node.call("GET", path)["differences"]}


STORE = """
[stores.photos]
namespace = "public/default"
capacity_bytes = 8192
segment_bytes = 4096
"""
ORDERS = "/admin/v2/persistent/public/default/orders"


def apply(node: ClusterNode, text: str) -> None:
    node.call("POST", "/catalog/apply", content=text)


def wait_settled(node: ClusterNode) -> None:
    """Until nothing is left of what was deleted."""
    wait_until(lambda: not node.node.topics.definitions.removals())


def test_a_topic_that_a_text_drops_is_gone_with_its_directory(
    node: ClusterNode, tmp_path: Path
) -> None:
    apply(node, '[topics."public/default/orders"]\n')
    old = node.node.topics.get("orders")
    old.append(value=b"old")
    directory = tmp_path / "data/topics/public/default/orders"
    assert directory.exists()
    apply(node, '[topics."public/default/orders"]\nabsent = true\n')
    node.refused(404, "GET", f"{ORDERS}/stats")
    wait_settled(node)
    assert not directory.exists()
    apply(node, '[topics."public/default/orders"]\n')
    new = node.node.topics.get("orders")
    assert new.object_id > old.object_id
    assert list(new.read()) == []


def test_a_text_creates_changes_and_drops_a_blob_store(node: ClusterNode, tmp_path: Path) -> None:
    apply(node, STORE)
    blob = node.call("POST", "/blobs/photos", content=b"cheese")["id"]
    assert node.ask("GET", f"/blobs/photos/{blob}").content == b"cheese"
    apply(node, '[stores.photos.settings]\npolicy = "stats"\n')
    store = node.node.blobs.get("photos")
    wait_until(lambda: store.settings.policy == "stats")
    assert not node.call("POST", "/catalog/apply", content=STORE)["changed"]
    apply(node, "[stores.photos]\nabsent = true\n")
    node.refused(404, "GET", f"/blobs/photos/{blob}")
    wait_settled(node)
    assert not (tmp_path / "data/blobs/photos").exists()


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (STORE.replace("4096", "12"), "setting segment_bytes is 12"),
        (STORE + "settings.speed = 3\n", "setting speed is 3"),
        ("[stores.known.settings]\npolicy = 7\n", "setting policy is 7, must be text"),
        (
            '[topics."public/default/a".settings]\nretention = 1\n',
            "setting retention is 1",
        ),
        (
            '[topics."public/default/a".settings]\nkey_ttl_ms = "1h"\n',
            "setting key_ttl_ms is '1h', must be a whole number",
        ),
        ('[topics."public/default/a".settings]\nretention_ms = -2\n', "setting retention_ms is -2"),
        (
            '[namespaces."public/default".settings]\nkeep_keyless = 1\n',
            "setting keep_keyless is 1, must be true or false",
        ),
    ],
)
def test_a_text_that_the_owner_could_not_execute_is_refused(
    node: ClusterNode, text: str, why: str
) -> None:
    apply(node, '[topics."public/default/a"]\n' + STORE.replace("photos", "known"))
    node.node.blobs.get("known")
    before = node.call("GET", "/catalog")
    answer = node.ask("POST", "/catalog/apply", content=text)
    assert answer.is_client_error
    assert why in answer.json()["reason"]
    assert node.call("GET", "/catalog") == before


def test_a_namespace_with_blob_stores_is_not_deleted_by_force_and_keeps_its_topics(
    node: ClusterNode,
) -> None:
    node.call("PUT", "/admin/v2/namespaces/public/shop")
    node.call("PUT", "/admin/v2/persistent/public/shop/orders")
    node.node.blobs.create(
        "photos", capacity_bytes=8192, segment_bytes=4096, namespace="public/shop"
    )
    _, why = node.refused(409, "DELETE", "/admin/v2/namespaces/public/shop?force=true")
    assert "blob stores" in why
    assert node.node.topics.exists("persistent://public/shop/orders")


def test_a_snapshot_drops_the_versions_before_it(tmp_path: Path) -> None:
    clock = ManualClock()
    with ClusterNode(tmp_path, clock=clock) as node:
        snapshot_drops_the_versions_before_it(node, clock)


def snapshot_drops_the_versions_before_it(node: ClusterNode, clock: ManualClock) -> None:
    version = node.call("POST", "/catalog/apply", content=ACME)["version"]
    clock.advance(3600)
    node.raise_low_watermark()
    assert node.call("POST", f"/catalog/snapshot?version={version}")["made"]
    assert not node.call("POST", f"/catalog/snapshot?version={version}")["made"]
    # The node drops them when it has seen the snapshot.
    while node.call("GET", "/cluster")["catalog"]["earliest"] < version:
        pass
    kind, why = node.refused(410, "GET", f"/catalog?version={version - 1}")
    assert kind == "CatalogVersionTrimmed"
    assert f"the earliest version left is {version}" in why
    assert node.call("GET", "/catalog/history")[-1]["changes"] is None
    assert node.call("GET", f"/catalog?version={version}")["version"] == version


def test_a_wrong_request_is_refused_with_a_reason_and_changes_nothing(node: ClusterNode) -> None:
    before = node.call("GET", "/catalog")
    path = "/catalog/apply"
    kind, why = node.refused(400, "POST", path, content='[topics."acme/x"]\npartitions = "a"')
    assert (kind, "line 1" in why) == ("InvalidDefinitionsText", True)
    assert "UTF-8" in node.refused(400, "POST", path, content=b"\xff")[1]
    assert "not TOML" in node.refused(400, "POST", path, content="a = [")[1]
    assert "invalid value" in node.refused(400, "POST", path, content=f"a = {'9' * 5000}")[1]
    assert "32 parts" in node.refused(400, "POST", path, content="a." * 100_000 + "a = 1")[1]
    kind, why = node.refused(404, "POST", path, content='[topics."none/x/y"]\npartitions = 1')
    assert "tenant none" in why or "namespace none/x" in why
    node.refused(413, "POST", path, content="a = 1\n" * 6000)
    node.refused(413, "POST", path, content="#" * 2**19)
    assert node.refused(404, "GET", "/catalog?version=99")[0] == "CatalogVersionNotFound"
    assert "ISO 8601" in node.refused(400, "GET", "/catalog?at=yesterday")[1]
    assert "ISO 8601" in node.refused(400, "GET", f"/catalog?at={'9' * 5000}")[1]
    assert "exclude" in node.refused(400, "GET", "/catalog?at=1&version=1")[1]
    node.refused(400, "GET", "/catalog/history?limit=1000")
    assert node.refused(404, "POST", "/catalog/snapshot?version=99")[0] == "CatalogVersionNotFound"
    assert node.call("GET", "/catalog") == before
