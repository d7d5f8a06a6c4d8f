"""Partitions move between real nodes that are killed, under writes and transactions."""

from __future__ import annotations

import random
import signal
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from lithify.exit_codes import NOT_FOUND
from tests.cli.cluster_members import Member, members, start_all
from tests.cli.nodes import COMMAND
from tests.cli.test_tables_kill import COUNTER, TICK_MS, Writers, check
from tests.patience import PROCESS_S_MAX, wait_until

if TYPE_CHECKING:
    from pathlib import Path

PARTITIONS = 6


def partitions(node: Member) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = node.get("/cluster/partitions")["partitions"]
    return found


def is_on(node: Member, *names: str) -> bool:
    """Are all partitions in place, together on exactly these nodes?"""
    found = partitions(node)
    in_place = all(each["state"] == "in place" for each in found)
    return in_place and {name for each in found for name in each["nodes"]} == set(names)


def kill(node: Member, nodes: list[Member], writers: Writers) -> None:
    """Kill a node, and restart it when others have written more."""
    node.end(signal.SIGKILL)
    before = writers.done
    wait_until(lambda: writers.done > before + 5)
    node.start([other for other in nodes if other is not node])
    node.await_ready()


def has_partitions(node: Member) -> bool:
    groups = node.get("/cluster/raft")["groups"]
    return any(each["group"].startswith("zone-") for each in groups)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_node_joins_and_one_leaves_while_others_are_killed(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    with members(tmp_path, 4, tick_ms=TICK_MS) as nodes:
        first, second, third, fourth = nodes
        three = [first, second, third]
        start_all(three)
        zone = tmp_path / "zone.toml"
        zone.write_text(f"[zones.z]\npartitions = {PARTITIONS}\nreplicas = 3\n")
        first.run("catalog", "apply", str(zone))
        columns = ("--column", "id:int64", "--column", "n:int64")
        first.run("tables", "create", "t", *columns, "--key", "id", "--zone", "z")
        first.run("tables", "put", "t", f"id={COUNTER}", "n=0")
        first.run("tables", "index", "create", "t", "by_n", "--column", "n")
        writers = Writers(three)
        try:
            wait_until(lambda: writers.done > 30)
            fourth.start([], "--join")
            fourth.await_logged(f"lithify cluster join n4 {fourth.address}")
            first.run("cluster", "join", "n4", fourth.address, "--learner")
            fourth.await_ready()
            kill(rng.choice((second, third, fourth)), nodes, writers)
            wait_until(lambda: is_on(first, "n1", "n2", "n3", "n4"))
            before = writers.done
            wait_until(lambda: writers.done > before + 30)
            leave = ("cluster", "leave", "n3")
            command = [str(COMMAND), *leave, "--url", first.url]
            with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as leaving:
                kill(rng.choice((second, third, fourth)), nodes, writers)
                leaving.communicate(timeout=PROCESS_S_MAX)
            if leaving.returncode:
                # Refused: the quorum of the cluster was at risk, or the answer was lost.
                wait_until(lambda: first.try_run(*leave)[0] in (0, NOT_FOUND))
            wait_until(lambda: is_on(first, "n1", "n2", "n4"))
            wait_until(lambda: not has_partitions(third))
            before = writers.done
            wait_until(lambda: writers.done > before + 30)
        finally:
            writers.end()
        assert writers.increments
        check([first, second, fourth], writers)
