"""Nodes of a cluster import data directories of version 0.1 with the same names at once."""

from __future__ import annotations

import json
import signal
from typing import TYPE_CHECKING, Any

import httpx

from tests.cli.cluster_members import Member, members, start_all
from tests.old_directory import data_files, extract
from tests.patience import PROCESS_S_MAX

if TYPE_CHECKING:
    from pathlib import Path

TOPICS = ("public/default/orders", "public/default/parts", "acme/shop/carts")
UNUSED = "public/default/unused"


def owners_at(node: Member) -> dict[str, str]:
    """The owner of each topic and store, as a node knows it."""
    rows: list[dict[str, Any]] = node.get("/catalog")["objects"]
    found = {row["name"]: row["owners"][0] for row in rows if row["kind"] == "topic"}
    return found | {row["name"]: row["owner"] for row in rows if row["kind"] == "store"}


def unclaimed_at(node: Member) -> set[str]:
    found = node.get("/admin/v2/unclaimed")
    names = [row["topic"] for row in found["topics"]] + [row["store"] for row in found["stores"]]
    return set(names)


def test_the_same_names_at_two_nodes_get_one_owner_each(tmp_path: Path) -> None:
    names = {f"persistent://{topic}" for topic in TOPICS} | {"photos"}
    with members(tmp_path, 3) as nodes:
        for node in nodes[:2]:
            extract(tmp_path).rename(tmp_path / node.name)
        before = {node.name: data_files(tmp_path / node.name) for node in nodes[:2]}
        for _ in range(2):
            start_all(nodes)
            owners = owners_at(nodes[0])
            assert all(owners_at(node) == owners for node in nodes)
            assert set(owners) == names | {f"persistent://{UNUSED}"}
            assert set(owners.values()) <= {"n1", "n2"}
            for node in nodes[:2]:
                assert unclaimed_at(node) == {name for name in names if owners[name] != node.name}
            assert unclaimed_at(nodes[2]) == set()
            for node in nodes:
                url = f"{node.url}/blobs/photos/kept"
                answer = httpx.get(url, follow_redirects=True, timeout=PROCESS_S_MAX)
                assert answer.content == b"cheese"
                assert "order 20" in node.run("topics", "tail", "orders")
            for node in nodes:
                assert node.end(signal.SIGTERM) == 0
            for node in nodes[:2]:
                after = data_files(tmp_path / node.name)
                kept = {path: after.get(path) for path in before[node.name] if ".seg" in path}
                assert kept == {path: before[node.name][path] for path in kept}
        lines = [line for node in nodes for line in node.log.read_text().splitlines()]
        told = [line for line in lines if "belongs to another node" in line]
        assert len(told) == len(names) + 1
        assert all("node=n" in line and "owner=n" in line for line in told), json.dumps(told)
