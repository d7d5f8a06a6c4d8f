"""A real node that was away for too long: the history is trimmed, and its replicas are rebuilt."""

from __future__ import annotations

import json
import signal
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from tests.cli.cluster_members import Member, members, start_all
from tests.cli.test_tables_kill import is_indexed, rows_at
from tests.patience import PROCESS_S_MAX, wait_until

if TYPE_CHECKING:
    from pathlib import Path


def put(node: Member, first: int, last: int) -> None:
    rows = "".join(json.dumps({"id": each, "n": each % 10}) + "\n" for each in range(first, last))
    headers = {"content-type": "application/x-ndjson"}
    url = f"{node.url}/tables/t/rows"
    assert httpx.post(url, content=rows, headers=headers, timeout=PROCESS_S_MAX).is_success


def to_rebuild(node: Member) -> dict[str, int]:
    return {row["name"]: row["replicas_to_rebuild"] for row in node.get("/cluster")["nodes"]}


def is_trimmed(node: Member) -> bool:
    """Has one more run left the newest version only?"""
    node.run("catalog", "compact")
    catalog = node.get("/cluster")["catalog"]
    return bool(catalog["earliest"] == catalog["version"])


def partitions(node: Member) -> dict[str, Any]:
    """The groups of partitions on a node."""
    groups = node.get("/cluster/raft")["groups"]
    return {each["group"]: each for each in groups if each["group"].startswith("zone-")}


def is_rebuilt(node: Member, other: Member) -> bool:
    own, others = partitions(node), partitions(other)
    return own.keys() == others.keys() and all(
        each["members"] == "voters n1 n2 n3"
        and each["role"] in ("leader", "follower")
        and each["applied_index"] >= others[name]["commit_index"]
        for name, each in own.items()
    )


@pytest.mark.slow
def test_a_node_that_returns_too_late_rebuilds_its_replicas(tmp_path: Path) -> None:
    settings = {"catalog_away_ms": 10_000, "table_availability_ms": 1000}
    with members(tmp_path, 3, tick_ms=50, **settings) as nodes:
        start_all(nodes)
        one, two, three = nodes
        zone = tmp_path / "zone.toml"
        zone.write_text("[zones.z]\npartitions = 2\nreplicas = 3\n")
        one.run("catalog", "apply", str(zone))
        columns = ("--column", "id:int64", "--column", "n:int64")
        one.run("tables", "create", "t", *columns, "--key", "id", "--zone", "z")
        one.run("tables", "index", "create", "t", "by_n", "--column", "n")
        put(one, 0, 100)
        wait_until(lambda: is_indexed(one))
        wait_until(lambda: is_rebuilt(three, one))
        three.end(signal.SIGKILL)
        for name in ("a", "b", "c"):
            one.run("tables", "alter", "t", "--add", f"{name}:int64=1")
        put(one, 50, 300)
        assert not is_trimmed(one)
        wait_until(lambda: is_trimmed(one), every_s=0.5)
        assert to_rebuild(one) == {"n1": 0, "n2": 0, "n3": 2}
        assert "silent, to be rebuilt (2 replicas)" in " ".join(
            one.run("cluster", "status").split()
        )
        assert 'lithify_table_replicas_to_rebuild{node="n3"} 2.0' in one.ask("/metrics").text
        three.start([one, two])
        three.await_ready()
        wait_until(lambda: to_rebuild(one)["n3"] == 0)
        wait_until(lambda: is_rebuilt(three, one))
        assert three.log.read_text().count("a replica is rebuilt") == 2
        put(two, 300, 320)
        wait_until(lambda: is_trimmed(one), every_s=0.5)
        # The rebuilt replicas count: with one other node they are a majority.
        one.end(signal.SIGKILL)
        expected = {each: each % 10 for each in range(320)}
        for node in (two, three):
            assert rows_at(node) == expected
            found: dict[int, int] = {}
            for value in range(10):
                found |= rows_at(node, index="by_n", prefix=json.dumps({"n": value}))
            assert found == expected
