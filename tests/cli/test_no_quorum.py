"""Commands at the last of three nodes: what needs a quorum says so, and who is missing."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

from lithify.exit_codes import UNREACHABLE
from tests.cli.cluster_members import members, start_all
from tests.patience import wait_until
from tests.ports import free_port

if TYPE_CHECKING:
    from pathlib import Path

MISSING = "there is no quorum: n1 is not connected to n2, n3 of the voters n1, n2, n3"


def test_without_a_quorum_changes_are_refused_with_the_missing_nodes(tmp_path: Path) -> None:
    text = tmp_path / "definitions.toml"
    text.write_text("[tenants.acme]\n")
    with members(tmp_path, 3, tick_ms=50) as nodes:
        start_all(nodes)
        first = nodes[0]
        for other in nodes[1:]:
            other.end(signal.SIGKILL)
        wait_until(lambda: not first.get("/cluster")["leader"])
        for words in (
            ("catalog", "apply", str(text)),
            ("topics", "create", "parts"),
            ("blobs", "create", "pictures", "--capacity", "1MiB", "--segment", "256KiB"),
            ("cluster", "join", "n4", f"127.0.0.1:{free_port()}"),
            ("cluster", "leave", "n2"),
            ("cluster", "holds"),
        ):
            code, _, err = first.try_run(*words)
            assert (code, MISSING in err) == (UNREACHABLE, True), (words, code, err)
        at = ("--group", "metastore", "--nodes", first.url)
        code, _, err = first.try_run("raft", "transfer", "n2", *at, at_url=False)
        assert (code, MISSING in err) == (UNREACHABLE, True), err
        answer = first.ask("/cluster/metastore/holds")
        kind = answer.headers["x-lithify-error"]
        assert (answer.status_code, kind) == (503, "MetastoreUnavailable")

        # What the node knows, and what it has, needs no quorum.
        assert "problem: the metastore has no leader: not connected: n2, n3" in first.run(
            "cluster", "status"
        )
        assert "acme" not in first.run("catalog", "show")
        assert "+ tenant acme" in first.run("catalog", "apply", str(text), "--dry-run")
        nodes[1].start([])
        nodes[1].await_ready()
        first.run("catalog", "apply", str(text))
