"""Definitions of three real nodes that are killed, restarted, joined and left."""

from __future__ import annotations

import signal
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.cli.cluster_members import Member, members, start_all
from tests.cli.definition_story import Story
from tests.cli.nodes import COMMAND
from tests.patience import PROCESS_S_MAX, wait_until

if TYPE_CHECKING:
    from pathlib import Path

TICK_MS = 50
SLOW_START_S_MAX = 400
"""Of a node that starts beside all others, on a machine that runs other tests."""

EVENTS = ("kill", "kill_two", "kill_all", "terminate", "stop_for_a_moment", "stop_for_long")
WITH_MAINTENANCE = (
    *EVENTS,
    *("snapshot", "snapshot_twice", "compact_history", "compact_files"),
    *("learn_or_leave",) * 2,
)


def test_acknowledged_definitions_survive_kills_and_stops(tmp_path: Path) -> None:
    with Story(tmp_path, seed=15, clients=4) as story:
        story.begin()
        story.run(2, ("kill", "stop_for_a_moment"))
        story.finish()
    assert len(story.record.made()) >= 6


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "events"), [(1500, EVENTS), (1501, WITH_MAINTENANCE)])
def test_acknowledged_definitions_survive_minutes_of_whatever_happens(
    tmp_path: Path, seed: int, events: tuple[str, ...]
) -> None:
    is_joined = "learn_or_leave" in events
    with Story(tmp_path, seed=seed, learner=is_joined, ready_s=SLOW_START_S_MAX) as story:
        story.begin()
        story.run(3 * len(events), events)
        story.finish()
    assert len(story.record.made()) >= 200


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
