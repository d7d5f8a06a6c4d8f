"""`lithify cluster`: nodes join and leave, status shows them, the history is compacted anywhere."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from typer.testing import CliRunner

from lithify.cli.main import app
from lithify.exit_codes import CONFLICT, FAILED, NOT_FOUND, UNREACHABLE, USAGE
from tests.cli.cluster_members import Member, members
from tests.cli.nodes import served
from tests.patience import wait_until
from tests.ports import free_port

if TYPE_CHECKING:
    from pathlib import Path


def roles(node: Member) -> dict[str, str]:
    found = json.loads(node.run("cluster", "status", "--json"))
    return {row["name"]: row["role"] for row in found["nodes"]}


def test_nodes_join_and_leave_and_every_node_shows_them(tmp_path: Path) -> None:
    with members(tmp_path, 2) as (first, second):
        first.start([])
        first.await_ready()
        assert roles(first) == {"n1": "voter"}
        second.start([], "--join")
        second.await_logged("lithify cluster join n2")
        code, _, err = first.try_run("cluster", "join", "n3", second.address)
        assert (code, "this is node n2, not n3" in err) == (UNREACHABLE, True), err
        joined = first.run("cluster", "join", "n2", second.address, "--learner")
        assert joined == "n2 is a learner of the cluster\n"
        second.await_ready()
        for node in (first, second):
            wait_until(lambda node=node: roles(node) == {"n1": "voter", "n2": "learner"})  # type: ignore[misc]
        row = json.loads(second.run("cluster", "join", "n2", second.address, "--json"))
        assert row == {"name": "n2", "address": second.address, "voter": True}
        lines = second.run("cluster", "status").splitlines()
        assert lines[0].startswith("cluster lithify, asked n2; leader n1, term ")
        n1, n2 = (line.split() for line in lines[-2:])
        assert n1[:4] == ["n1", "voter,", "leads", "alive"]
        assert n2[:4] == ["n2", "voter", "alive", second.address]
        assert second.url in n2

        # The leader compacts for all: the other node sends the command on.
        done = json.loads(second.run("cluster", "compact", "--json"))
        assert [(row["node"], row["status"]) for row in done] == [("n1", "SUCCESS")]
        [row] = json.loads(second.run("cluster", "compaction-status", "--json"))
        assert row["node"] == "n1"
        [planned] = json.loads(second.run("cluster", "compact", "--dry-run", "--json"))
        assert (planned["node"], planned["declined"]["why"]) == ("n2", "nothing to gain")
        assert "retention" in second.run("cluster", "holds")
        [own] = json.loads(second.run("cluster", "compact", "metastore", "--json"))
        assert (own["node"], own["group"]) == ("n2", "metastore")

        assert first.run("cluster", "leave", "n2") == "n2 has left the cluster\n"
        wait_until(lambda: roles(first) == {"n1": "voter"})
        # A command whose answer was lost can be repeated.
        first.run("cluster", "leave", "n2")
        code, _, err = first.try_run("cluster", "leave", "n9")
        assert (code, "n9" in err) == (NOT_FOUND, True), err


def cluster(*words: str) -> tuple[int, str, str]:
    done = CliRunner().invoke(app, ["cluster", *words])
    return done.exit_code, done.stdout, done.stderr


def test_a_directory_is_a_cluster_of_one(tmp_path: Path) -> None:
    at = ("--data", str(tmp_path / "data"))
    code, _, err = cluster("status", *at)
    assert (code, "is not a data directory" in err) == (USAGE, True)
    CliRunner().invoke(app, ["topics", "create", "t", *at])

    def is_alone() -> bool:
        code, out, _ = cluster("status", "--json", *at)
        found: dict[str, Any] = json.loads(out)
        return (code, found["leader"], found["problems"]) == (0, found["node"], [])

    # Each command opens the directory, and one may ask before its election is over.
    wait_until(is_alone)
    code, _, err = cluster("join", "n2", "127.0.0.1:1", *at)
    assert (code, "has no address for other nodes" in err) == (USAGE, True)
    assert cluster("leave", "n2", *at)[0] == NOT_FOUND
    assert cluster("compact", *at)[1].startswith("metastore: nothing to do")
    code, out, _ = cluster("compact", "--dry-run", *at)
    assert (code, "held by retention" in out) == (0, True)
    assert cluster("compaction-status", *at)[1] == "metastore: has not been compacted\n"
    assert json.loads(cluster("compaction-history", "--json", *at)[1]) == []
    code, _, err = cluster("cancel-compaction", *at)
    assert (code, "no run on the metastore" in err) == (CONFLICT, True)
    held = json.loads(cluster("holds", "--json", *at)[1])["holds"]
    assert {"retention", "newest revision"} <= {each["name"] for each in held}
    assert cluster("compaction-status", "no-group", *at)[0] == NOT_FOUND


def raft(*words: str) -> tuple[int, str, str]:
    done = CliRunner().invoke(app, ["raft", *words])
    return done.exit_code, done.stdout, done.stderr


def test_the_raft_groups_of_a_node_are_reached_over_http(tmp_path: Path) -> None:
    port = free_port()
    with served(tmp_path / "data", "--node", "n1", "--cluster-port", str(port)) as node:
        away = f"http://127.0.0.1:{free_port()}"
        at, group = ("--nodes", node.http), ("--group", "metastore")
        code, out, _ = raft("members", *group, "--nodes", f"{away},{node.http}")
        assert code == 0
        assert f"n1  127.0.0.1:{port}" in out
        code, out, _ = raft("overview", "--json", *at)
        assert (code, json.loads(out)[node.http]["node"]) == (0, "n1")
        assert "metastore" in raft("overview", *at)[1]
        assert "snapshot started" in raft("snapshot", *group, *at)[1]
        assert raft("transfer", "n1", *group, *at)[1].startswith("n1 leads in term ")
        assert raft("compact", "metastore", "--dry-run", *at)[1].startswith("n1\n")
        code, out, _ = raft("compact", "metastore", "--wait", "--json", *at)
        [row] = json.loads(out)
        assert (code, row["node"], row["status"]) == (0, "n1", "SUCCESS")
        [row] = json.loads(raft("compaction-status", "metastore", "--json", *at)[1])
        assert (row["node"], row["group"]) == ("n1", "metastore")
        assert json.loads(raft("compaction-history", "metastore", "--json", *at)[1]) == []
        assert raft("cancel-compaction", "metastore", *at)[0] == CONFLICT

        code, out, _ = raft("snapshot", *group, "--nodes", f"{away},{node.http}")
        assert (code, "unreachable" in out) == (FAILED, True)
        assert raft("members", *group, "--nodes", away)[0] == UNREACHABLE
        assert raft("members", "--group", "none", *at)[0] == NOT_FOUND
        code, _, err = raft("remove", "n1", *group, *at)
        assert (code, "lithify cluster join" in err) == (USAGE, True)
        # Not over the cluster port either: it has the definitions.
        code, _, err = raft("drop", "metastore", "--yes", "--nodes", f"127.0.0.1:{port}")
        assert (code, "cannot be dropped" in err) == (CONFLICT, True)
        assert f"n1  127.0.0.1:{port}" in raft("members", *group, *at)[1]


def test_without_a_node_the_address_is_named() -> None:
    url = f"http://127.0.0.1:{free_port()}"
    for words in (("status",), ("join", "n2", "h:1"), ("leave", "n2"), ("compact",)):
        code, _, err = cluster(*words, "--url", url)
        assert (code, url in err) == (UNREACHABLE, True)
