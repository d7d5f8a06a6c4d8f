"""Definitions of three real nodes that are killed, restarted, joined and left."""

from __future__ import annotations

import itertools
import random
import signal
import subprocess
import threading
import time
from typing import TYPE_CHECKING

import httpx
import pytest

from tests.cli.cluster_members import Member, members, start_all
from tests.cli.nodes import COMMAND
from tests.patience import PROCESS_S_MAX, wait_until

if TYPE_CHECKING:
    from pathlib import Path

WRITERS = 3
TICK_MS = 50


class Writers:
    """Threads that create tenants at all nodes, and note which are acknowledged."""

    def __init__(self, nodes: list[Member]) -> None:
        self._nodes = nodes
        self._numbers = itertools.count()
        self._ended = threading.Event()
        self.acknowledged: dict[str, int] = {}
        """By tenant: the version."""
        self._threads = [threading.Thread(target=self._write) for _ in range(WRITERS)]
        for thread in self._threads:
            thread.start()

    def _write(self) -> None:
        while not self._ended.is_set():
            number = next(self._numbers)
            url = self._nodes[number % len(self._nodes)].url
            try:
                answer = httpx.post(
                    f"{url}/catalog/apply",
                    content=f"[tenants.t{number}]",
                    timeout=PROCESS_S_MAX,
                )
            except httpx.HTTPError:
                # The node was killed: the outcome is not known.
                time.sleep(0.05)
                continue
            if answer.is_success:
                self.acknowledged[f"t{number}"] = answer.json()["version"]
            else:
                assert answer.status_code in (503, 504, 409), answer.text

    def end(self) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join()


def check_definitions(nodes: list[Member], acknowledged: dict[str, int]) -> None:
    """Every node has every acknowledged definition, in the same versions without gaps."""
    latest = max(each.get("/cluster")["catalog"]["version"] for each in nodes)
    for each in nodes:
        wait_until(lambda each=each: each.get("/catalog")["version"] >= latest)  # type: ignore[misc]
        objects = each.get("/catalog")["objects"]
        tenants = {row["name"] for row in objects if row["kind"] == "tenant"}
        assert acknowledged.keys() <= tenants, each.name
    previous: set[str] = set()
    for version in range(1, latest + 1):
        found = [each.get(f"/catalog?version={version}") for each in nodes]
        assert all(other == found[0] for other in found), version
        tenants = {row["name"] for row in found[0]["objects"] if row["kind"] == "tenant"}
        if version > 1:
            assert previous < tenants, f"version {version} has what was before, and one more"
        assert all(tenants >= {name} for name, made in acknowledged.items() if made <= version)
        previous = tenants


def kill_and_restart(nodes: list[Member], rng: random.Random, rounds: int, at_least: int) -> None:
    writers = Writers(nodes)
    try:
        for _ in range(rounds):
            before = len(writers.acknowledged)
            killed = rng.choice(nodes)
            wait_until(lambda before=before: len(writers.acknowledged) > before)  # type: ignore[misc]
            killed.end(signal.SIGKILL)
            before = len(writers.acknowledged)
            wait_until(lambda before=before: len(writers.acknowledged) > before + 1)  # type: ignore[misc]
            killed.start([other for other in nodes if other is not killed])
            killed.await_ready()
    finally:
        writers.end()
    assert len(writers.acknowledged) >= at_least
    check_definitions(nodes, writers.acknowledged)


def test_acknowledged_definitions_survive_kills_of_any_node(tmp_path: Path) -> None:
    with members(tmp_path, 3, tick_ms=TICK_MS) as nodes:
        start_all(nodes)
        kill_and_restart(nodes, random.Random(15), rounds=3, at_least=9)


@pytest.mark.slow
def test_acknowledged_definitions_survive_minutes_of_kills(tmp_path: Path) -> None:
    with members(tmp_path, 3, tick_ms=TICK_MS) as nodes:
        start_all(nodes)
        kill_and_restart(nodes, random.Random(1500), rounds=40, at_least=100)


def rows_of(node: Member) -> dict[str, tuple[str, bool]]:
    """By name: role, and whether the node is alive."""
    return {row["name"]: (row["role"], row["alive"]) for row in node.get("/cluster")["nodes"]}


def has_tenant(node: Member, name: str) -> bool:
    return any(
        (row["kind"], row["name"]) == ("tenant", name) for row in node.get("/catalog")["objects"]
    )


def apply(node: Member, directory: Path, name: str) -> None:
    """Create a tenant by the command, as a user does."""
    file = directory / f"{name}.toml"
    file.write_text(f"[tenants.{name}]\n")
    node.run("catalog", "apply", str(file))


def run_at(code: int, *words: str) -> str:
    """What a command prints that ends with this code."""
    done = subprocess.run(
        [COMMAND, *words], capture_output=True, text=True, timeout=PROCESS_S_MAX, check=False
    )
    assert done.returncode == code, (words, done.stdout, done.stderr)
    return done.stdout + done.stderr


def test_nodes_join_leave_and_return_with_an_old_disk(tmp_path: Path) -> None:
    with members(tmp_path, 4, tick_ms=TICK_MS, table_availability_ms=1000) as nodes:
        *three, fourth = nodes
        first, second, third = three
        start_all(three)
        apply(first, tmp_path, "early")
        fourth.start([], "--join")
        fourth.await_logged(f"lithify cluster join n4 {fourth.address}")
        assert "learner" in second.run("cluster", "join", "n4", fourth.address, "--learner")
        fourth.await_ready()
        assert has_tenant(fourth, "early")
        everybody = {"n1": ("voter", True), "n2": ("voter", True), "n3": ("voter", True)}
        wait_until(lambda: rows_of(third) == everybody | {"n4": ("learner", True)})
        apply(fourth, tmp_path, "by-a-learner")
        assert all(has_tenant(each, "by-a-learner") for each in nodes)
        fourth.end(signal.SIGTERM)
        wait_until(lambda: not rows_of(first)["n4"][1])
        first.run("cluster", "leave", "n4")
        wait_until(lambda: rows_of(first) == everybody)

        assert third.end(signal.SIGTERM) == 0
        data = ("--data", str(tmp_path / "n3"))
        assert "acme" not in run_at(0, "catalog", "show", *data)
        assert "by-a-learner" in run_at(0, "catalog", "show", *data)
        wanted = tmp_path / "early.toml"
        wanted.write_text("[tenants.refused]\n")
        assert "in a cluster with n1, n2" in run_at(4, "catalog", "apply", str(wanted), *data)
        assert "in a cluster with n1, n2" in run_at(4, "serve", *data, "--http-port", "0")
        for number in range(3):
            apply(first, tmp_path, f"away-{number}")
        version = first.get("/catalog")["version"]
        snapshot = "catalog", "snapshot", str(version)
        # It can be dropped when all nodes have it below their low watermarks.
        wait_until(lambda: first.try_run(*snapshot)[0] == 0)
        third.start([first, second])
        third.await_ready()
        assert all(has_tenant(third, f"away-{number}") for number in range(3))
        assert third.get("/catalog/history")[-1]["version"] == version
        wait_until(lambda: rows_of(first) == everybody)
