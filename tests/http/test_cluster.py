"""The cluster over HTTP: its nodes, its Raft groups and their compaction."""

from __future__ import annotations

import threading
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from lithify.clock import ManualClock, SystemClock
from lithify.errors import RunCancelled
from lithify.metastore.compaction.history_compaction import HistorySettings
from lithify.metastore.compaction.holds import NamedHold, place_hold, release_hold
from lithify.metastore.transaction import Put, Transaction
from tests.http.cluster_node import ClusterNode
from tests.http.node import HttpNode
from tests.patience import PROCESS_S_MAX, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from lithify.compaction.reports.report import Report
    from lithify.compaction.run.control import RunControl
    from lithify.compaction.tasks.jobs import Jobs

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
        kind, why = node.refused(400, "POST", "/cluster/leave", json={"name": "n1"})
        assert (kind, "-n1 would" in why) == ("InvalidChange", True)
        kind, why = node.refused(404, "POST", "/cluster/leave", json={"name": "n2"})
        assert (kind, why) == ("MemberAbsent", "node n2 is not a member of the cluster: n1")
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
        'lithify_table_partitions{state="moving"} 0.0',
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


# --- the history of the metastore ---------------------------------------------------------------

HISTORY = "/cluster/metastore/compaction"


def write(node: ClusterNode, key: bytes, *values: bytes) -> list[int]:
    """The revisions of the values."""
    cluster = node.node.cluster

    def put(value: bytes) -> int:
        transaction = Transaction(then=(Put(key, value),))
        return cluster.call(partial(cluster.metastore.transact, transaction)).result().revision

    return list(map(put, values))


def ended(node: ClusterNode, request: str) -> dict[str, Any]:
    """The status of a run that has ended."""
    while True:
        [row] = node.call("GET", f"{HISTORY}/progress?request={request}")
        if row["status"] != "RUNNING":
            return dict(row)


def keep_nothing(node: ClusterNode) -> None:
    history = node.node.cluster.history
    assert history is not None
    history.settings = HistorySettings(retention_ms=0)


def test_the_history_of_the_metastore_is_compacted_on_request(node: ClusterNode) -> None:
    [row] = node.call("GET", f"{HISTORY}/progress")
    assert (row["log"], row["status"]) == ("metastore", "NOT_RUN")
    write(node, b"key", *(b"%d" % number for number in range(20)))
    [kept] = node.call("POST", f"{HISTORY}/plan")
    assert kept["declined"]["why"] == "nothing to gain"
    assert "retention" in kept["text"]

    keep_nothing(node)
    [plan] = node.call("POST", f"{HISTORY}/plan")
    assert plan["declined"] is None
    assert plan["plan"]["values"] >= 18
    assert node.call("GET", "/cluster")["metastore"]["floor"] == 0, "a dry run changes nothing"

    request = node.ask("PUT", HISTORY).headers["x-lithify-request"]
    row = ended(node, request)
    assert (row["status"], row["report"]["result"]) == ("SUCCESS", "done")
    assert row["report"]["dropped"]["superseded"][0] == plan["plan"]["values"]
    assert node.call("GET", "/cluster")["metastore"]["floor"] == plan["plan"]["revision"]
    [report] = node.call("GET", f"{HISTORY}/history?limit=5")
    assert (report["trigger"], report["run_id"]) == ("admin", row["report"]["run_id"])

    lines = node.ask("GET", "/metrics").text.splitlines()
    assert 'lithify_metastore_compaction_runs_total{result="done"} 1.0' in lines
    removed = sum(count for count, _ in report["dropped"].values())
    assert f"lithify_metastore_compaction_removed_total {removed:.1f}" in lines
    assert node.refused(409, "DELETE", HISTORY)[0] == "RequestRefused"
    assert node.refused(404, "GET", f"{HISTORY}/progress?request=other")[0] == "RequestUnknown"


def test_holds_are_listed_by_name_and_keep_the_history(node: ClusterNode) -> None:
    revisions = write(node, b"key", *(b"%d" % number for number in range(20)))
    keep_nothing(node)
    cluster = node.node.cluster
    hold = NamedHold("backup", revisions[5], "n1", "of Monday")
    cluster.call(partial(place_hold, cluster.metastore, SystemClock(), hold)).result()
    found = node.call("GET", "/cluster/metastore/holds")
    first = found["holds"][0]
    assert (first["name"], first["owner"]) == ("hold backup", "n1: of Monday")
    assert found["revision"] == first["position"] == revisions[5] - 1
    assert {each["name"] for each in found["holds"]} >= {"newest revision", "retention"}

    row = ended(node, node.ask("PUT", HISTORY).headers["x-lithify-request"])
    assert row["report"]["generation_after"] == revisions[5] - 1
    cluster.call(partial(release_hold, cluster.metastore, "backup")).result()
    row = ended(node, node.ask("PUT", HISTORY).headers["x-lithify-request"])
    assert row["report"]["generation_after"] > revisions[10]


def test_one_queue_has_the_runs_of_topics_groups_and_the_metastore(node: ClusterNode) -> None:
    topics, cluster = node.node.topics, node.node.cluster
    topics.create("persistent://public/default/t")
    began, go = threading.Event(), threading.Event()

    queue = node.node.queue
    assert cluster.queue is queue

    def hold(_: Jobs, control: RunControl) -> Report:
        began.set()
        assert go.wait(PROCESS_S_MAX)
        control.check()
        raise RunCancelled("held")

    history = cluster.history
    assert history is not None
    queue.request(history, hold)
    assert began.wait(PROCESS_S_MAX)
    # Another log of the same disk waits for it, whatever its kind.
    for path in (COMPACTION, "/admin/v2/persistent/public/default/t/compaction"):
        assert node.ask("PUT", f"{path}?wait=false").status_code == 409
    request = node.ask("PUT", COMPACTION).headers["x-lithify-request"]
    [row] = node.call("GET", f"{COMPACTION}/progress?request={request}")
    assert (row["status"], "metastore" in row["waitsFor"]) == ("RUNNING", True)
    # A queue has one thread per disk.
    names = [each.name for each in threading.enumerate()]
    assert len([name for name in names if name.startswith("lithify-compaction-")]) == 1
    go.set()
    while row["status"] == "RUNNING":
        [row] = node.call("GET", f"{COMPACTION}/progress?request={request}")
    assert row["status"] == "SUCCESS"


def test_the_history_is_compacted_without_a_request(tmp_path: Path) -> None:
    clock = ManualClock()
    with ClusterNode(tmp_path, clock=clock) as node:
        write(node, b"key", *(b"%d" % number for number in range(20)))
        clock.advance(7200)
        write(node, b"key", b"new")
        wait_until(lambda: node.call("GET", f"{HISTORY}/history?limit=1") != [])
        assert node.call("GET", "/cluster")["metastore"]["floor"] > 0
        [report] = node.call("GET", f"{HISTORY}/history?limit=1")
        assert (report["trigger"], report["result"]) == ("periodic", "done")
