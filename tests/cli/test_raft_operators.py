"""What operators see of three nodes when one of them is dead, and when they repeat a command."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import time
from typing import TYPE_CHECKING, Any

import typer
from typer.testing import CliRunner

from lithify.cli.main import app
from lithify.fs import MemoryFileSystem
from lithify.node.settings import read_settings
from tests.cli.nodes import COMMAND
from tests.cli.raft_nodes import Cluster, leader_of, raft_cluster
from tests.patience import PROCESS_S_MAX, at_most, wait_until
from tests.ports import free_port

if TYPE_CHECKING:
    from pathlib import Path


def run(cluster: Cluster, *command: str) -> tuple[int, str, str]:
    """(exit code, stdout, stderr) of a command that is told all addresses."""
    nodes = ",".join(map(str, cluster.addresses))
    done = CliRunner().invoke(app, ["raft", *command, "--nodes", nodes])
    return done.exit_code, done.stdout, done.stderr


def run_json(cluster: Cluster, *command: str) -> tuple[int, Any]:
    code, out, _ = run(cluster, *command, "--json")
    return code, json.loads(out)


def test_one_dead_node_is_a_row_and_not_the_end(tmp_path: Path) -> None:
    with raft_cluster(tmp_path) as cluster:
        assert run(cluster, "put", "k", "v")[0] == 0
        dead = cluster.nodes["n2"]
        dead.kill()

        began_s = time.monotonic()
        code, shown, _ = run(cluster, "overview")
        # A few seconds for the dead one, at the same time as the others; not thirty.
        assert time.monotonic() - began_s < 15
        assert code == 1
        row = next(line for line in shown.splitlines() if str(dead.address) in line)
        assert "unreachable" in row
        assert all(re.search(rf"{n} +running", shown) for n in ("n1", "n3"))

        code, found = run_json(cluster, "overview")
        assert code == 1
        assert found[str(dead.address)]["error"].startswith("unreachable")
        assert found[str(cluster.nodes["n1"].address)]["node"] == "n1"
        for verb in ("snapshot", "compact"):
            code, shown, _ = run(cluster, verb)
            assert (code, shown.count("started"), shown.count("unreachable")) == (1, 2, 1)

        for node in cluster.nodes.values():
            node.kill()
        for verb in ("overview", "snapshot", "compact"):
            code, shown, _ = run(cluster, verb)
            assert (code, shown.count("unreachable")) == (5, 3), verb


def test_a_silent_node_is_unreachable_too(tmp_path: Path) -> None:
    with raft_cluster(tmp_path) as cluster:
        assert run(cluster, "put", "k", "v")[0] == 0
        cluster.nodes["n3"].signal(signal.SIGSTOP)
        code, shown, _ = run(cluster, "overview")
        assert (code, shown.count("unreachable"), shown.count("running")) == (1, 1, 2)


def test_transfer_waits_until_the_member_leads_or_says_why_not(tmp_path: Path) -> None:
    with raft_cluster(tmp_path) as cluster:
        assert run(cluster, "put", "k", "v")[0] == 0
        leader = asyncio.run(leader_of(cluster)).node
        others = [name for name in cluster.nodes if name != leader]
        code, shown, err = run(cluster, "transfer", others[0])
        assert code == 0, err
        assert shown.startswith(f"{others[0]} leads in term ")
        code, found = run_json(cluster, "members")
        assert found["leader"] == others[0]
        assert run(cluster, "transfer", others[0])[0] == 0, "it leads already"

        cluster.nodes[others[1]].kill()
        code, _, err = run(cluster, "transfer", others[1])
        assert code == 4
        assert f"{others[1]} did not become the leader" in err
        assert run(cluster, "transfer", "n9")[0] == 4


def test_a_change_that_took_effect_can_be_repeated(tmp_path: Path) -> None:
    with raft_cluster(tmp_path) as cluster:
        new = cluster.joining("n4")
        add = ("add", f"n4={new.address}")
        first, again = run(cluster, *add), run(cluster, *add)
        assert (first[0], again[0]) == (0, 0), (first, again)
        assert run(cluster, "remove", "n4")[0] == 0
        assert run(cluster, "remove", "n4")[0] == 0
        code, _, err = run(cluster, "remove", "n9")
        assert code == 4
        assert "n9" in err, "no node knows it"


def test_each_event_of_a_group_is_logged_once(tmp_path: Path) -> None:
    with raft_cluster(tmp_path) as cluster:
        assert run(cluster, "put", "k", "v")[0] == 0
        leader = asyncio.run(leader_of(cluster))
        leader.kill()
        before = {name: len(node.errors.read_text()) for name, node in cluster.nodes.items()}
        assert run(cluster, "put", "k", "w")[0] == 0
        new = asyncio.run(leader_of(cluster))
        assert run(cluster, "remove", leader.node)[0] == 0
        rest = next(node for node in cluster.nodes.values() if node not in (leader, new))
        wait_until(lambda: "members changed" in rest.errors.read_text())
        text = rest.errors.read_text()[before[rest.node] :]
        changes = re.findall(r"leader changed.*(leader=\S+ term=\d+)", text)
        assert any(each.startswith(f"leader={new.node} ") for each in changes)
        assert len(changes) == len(set(changes)), "each leader of each term once"
        # Once until a member leads, however often members stand for election.
        assert len(re.findall(rf"election begun.*was={leader.node}", text)) <= 1
        assert "election begun" in new.errors.read_text()
        # A new member that needs entries which the others have compacted away.
        assert run(cluster, "snapshot")[1].count("snapshot started") == 2
        joined = cluster.joining("n4")
        assert run(cluster, "add", f"n4={joined.address}")[0] == 0
        wait_until(lambda: "snapshot installed" in joined.errors.read_text())
        assert joined.errors.read_text().count("snapshot installed") == 1


def _variables(command: Any) -> set[str]:
    """The environment variables that a command and those below it read."""
    found = {v for p in command.params if isinstance(v := p.envvar, str)}
    return found.union(*map(_variables, getattr(command, "commands", {}).values()))


def test_settings_of_a_node_know_every_variable_of_the_commands() -> None:
    variables = _variables(typer.main.get_command(app))
    assert "LITHIFY_RAFT_NODES" in variables
    read_settings(MemoryFileSystem(), config=None, environ=dict.fromkeys(variables, "x"), flags={})


def test_variables_of_clients_do_not_stop_a_server(tmp_path: Path) -> None:
    ports = ["--pulsar-port", str(free_port()), "--http-port", str(free_port())]
    given = {"LITHIFY_RAFT_NODES": "127.0.0.1:7001", "LITHIFY_RAFT_TLS": "ca,cert,key"}
    with subprocess.Popen(
        [COMMAND, "serve", "--data", tmp_path / "node", *ports],
        env={**os.environ, **given},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        assert process.stdout is not None
        try:
            with at_most(PROCESS_S_MAX, process.kill):
                first = process.stdout.readline()
        finally:
            process.terminate()
        assert "error" not in first, first
