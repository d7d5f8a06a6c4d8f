"""The cluster over HTTP: its nodes, its Raft groups and their compaction."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.http.cluster_node import ClusterNode
from tests.http.node import HttpNode

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

COMPACTION = "/cluster/raft/metastore/compaction"


@pytest.fixture
def node(tmp_path: Path) -> Iterator[ClusterNode]:
    with ClusterNode(tmp_path) as opened:
        yield opened


def test_a_node_alone_is_a_cluster_of_one(node: ClusterNode) -> None:
    found = node.call("GET", "/cluster")
    assert (found["cluster"], found["node"], found["leader"]) == ("lithify", "n1", "n1")
    [row] = found["nodes"]
    assert (row["name"], row["role"], row["leads"], row["alive"]) == ("n1", "voter", True, True)
    assert found["metastore"]["revision"] > 0
    assert found["catalog"]["current"] == found["catalog"]["version"] == 1
    assert found["problems"] == []


def test_a_node_without_a_port_adds_no_other(node: ClusterNode) -> None:
    wanted = {"name": "n2", "address": "127.0.0.1:1"}
    _, why = node.refused(400, "POST", "/cluster/join", json=wanted)
    assert "n1 has no address for other nodes" in why


def test_only_a_node_that_answers_is_added(tmp_path: Path) -> None:
    with ClusterNode(tmp_path, cluster_port=0) as node:
        for wrong in (
            {"name": "n 2", "address": "h:1"},
            {"name": "n2", "address": "nowhere"},
            {"name": 7, "address": "h:1"},
            {"name": "n2", "address": "h:1", "more": 1},
            {"name": "n2"},
        ):
            node.refused(400, "POST", "/cluster/join", json=wrong)
        taken = {"name": "n2", "address": "127.0.0.1:1"}
        kind, why = node.refused(503, "POST", "/cluster/join", json=taken)
        assert (kind, "n2 was not reached" in why) == ("MemberNotReached", True)
        for name in ("n1", "n2"):
            kind, why = node.refused(400, "POST", "/cluster/leave", json={"name": name})
            assert (kind, f"-{name} would" in why) == ("InvalidChange", True)
        assert [row["name"] for row in node.call("GET", "/cluster")["nodes"]] == ["n1"]


def test_the_groups_of_the_node_are_shown(node: ClusterNode) -> None:
    found = node.call("GET", "/cluster/raft")
    assert (found["node"], found["connected"]) == ("n1", [])
    assert [(each["group"], each["role"]) for each in found["groups"]] == [("metastore", "leader")]


def test_the_metastore_is_compacted_like_a_topic(node: ClusterNode) -> None:
    [plan] = node.call("POST", f"{COMPACTION}/plan")
    assert (plan["group"], "plan" in plan) == ("metastore", True)
    answer = node.ask("PUT", COMPACTION)
    request = answer.headers["x-lithify-request"]
    while True:
        [row] = node.call("GET", f"{COMPACTION}/progress?request={request}")
        if row["status"] != "RUNNING":
            break
    assert row["status"] == "SUCCESS"
    assert row["report"]["result"] == "nothing to do"
    assert node.call("GET", f"{COMPACTION}/history?limit=1") == []
    assert node.refused(409, "DELETE", COMPACTION)[0] == "RunRefused"
    assert node.refused(404, "GET", f"{COMPACTION}/progress?request=other")[0] == "RequestUnknown"
    assert node.refused(404, "GET", "/cluster/raft/other/compaction/history")[0] == "GroupAbsent"


def test_metrics_have_the_state_of_the_cluster(node: ClusterNode) -> None:
    lines = node.ask("GET", "/metrics").text.splitlines()
    for line in (
        'lithify_raft_role{group="metastore",role="leader"} 1.0',
        'lithify_nodes{state="alive"} 1.0',
        'lithify_nodes{state="silent"} 0.0',
        "lithify_raft_leader_changes_total 1.0",
        "lithify_catalog_version 1.0",
        "lithify_metastore_floor 0.0",
        "lithify_cluster_problems 0.0",
    ):
        assert line in lines, line
    samples = [line.rpartition(" ") for line in lines if not line.startswith("#")]
    found = {name: float(value) for name, _, value in samples}
    assert found['lithify_raft_term{group="metastore"}'] >= 1
    assert found["lithify_metastore_revision"] > 0


def test_health_names_a_cluster_that_has_ended(node: ClusterNode) -> None:
    assert node.ask("GET", "/admin/v2/brokers/health").text == "ok"
    node.node.cluster.close()
    # The answer of before is kept for a second.
    while (answer := node.ask("GET", "/admin/v2/brokers/health")).status_code == 200:
        pass
    assert "the Raft node of the process has stopped" in answer.json()["reason"]
    ready = node.ask("GET", "/admin/v2/brokers/ready")
    assert ready.status_code == 200
    assert ready.text.startswith("ok\n")
    assert node.ask("GET", "/metrics").status_code == 200
    assert node.refused(503, "GET", "/cluster")[0] == "LogClosed"


def test_a_process_without_a_cluster_has_no_such_paths() -> None:
    with HttpNode() as node:
        for path in ("/cluster", "/catalog", "/cluster/raft"):
            assert node.ask("GET", path).status_code == 404
