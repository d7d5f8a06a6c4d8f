"""`lithify tables partitions`, on a data directory that no node serves."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from typer.testing import CliRunner

from lithify.cli.main import app

if TYPE_CHECKING:
    from pathlib import Path


def run(directory: Path, *words: str) -> str:
    done = CliRunner().invoke(app, ["tables", *words, "--data", str(directory)])
    assert done.exit_code == 0, (words, done.stderr)
    return done.stdout


def test_the_nodes_of_all_partitions_are_listed(tmp_path: Path) -> None:
    data = tmp_path / "data"
    run(data, "create", "t", "--column", "id:int32", "--key", "id")
    run(data, "put", "t", "id=5")
    found = json.loads(run(data, "partitions", "--json"))
    [node] = {name for each in found["partitions"] for name in each["nodes"]}
    assert found["leaving"] == []
    assert {each["zone"] for each in found["partitions"]} == {"default"}
    assert {each["state"] for each in found["partitions"]} <= {"creating", "in place"}
    lines = [line.split() for line in run(data, "partitions").splitlines()]
    assert len(lines) == len(found["partitions"]) + 2
    assert node in lines[-1]
