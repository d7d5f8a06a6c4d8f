"""The benchmarks run, tiny, and say what they are asked to say. Their figures are not looked at."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

from bench import blobs, blobs_http, compaction, foundation, raft, raft_storage, reading, topics
from bench.etcd import find_etcd
from bench.harness import Case, Result, compare, table

ROOT = Path(__file__).parent.parent


def bench(directory: Path, *options: str) -> str:
    command = [sys.executable, "-m", "bench", "--quick", "--dir", str(directory), *options]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert list(directory.iterdir()) == [], "it cleans up behind itself"
    return run.stdout


def test_every_row_is_measured_and_printed(tmp_path: Path) -> None:
    lines = bench(tmp_path).splitlines()
    names = [line.split("|")[1].strip() for line in lines[2:]]
    served = (blobs_http,) if blobs_http.find_nginx() else ()
    measured = (foundation, topics, reading, blobs, *served, compaction, raft_storage, raft)
    rows = [name for module in measured for name in module.CASES]
    if not find_etcd():
        rows.remove("raft-three")
    if not find_spec("duckdb"):
        rows.remove("compact-duckdb")
    assert [name for name in names if "(" not in name] == rows
    assert len({len(line) for line in lines}) == 1, "the columns stand below each other"


def test_one_row_as_json_has_the_seconds_of_every_round(tmp_path: Path) -> None:
    (row,) = json.loads(bench(tmp_path, "--only", "open", "--json"))
    assert row["name"] == "open"
    assert row["at_least"] == 0.5
    assert row["verdict"] in {"pass", "miss"}
    assert len(row["ours_s"]) == len(row["raw_s"]) == 2
    assert row["ratio"] == min(row["raw_s"]) / min(row["ours_s"])


def test_a_row_may_have_a_figure_that_is_no_time(tmp_path: Path) -> None:
    row, opening = json.loads(bench(tmp_path, "--only", "many-topics", "--json"))
    assert re.fullmatch(r"\d+ MB idle, under 500: (pass|miss)", row["note"])
    assert opening["note"] == ""


def case(at_least: float | None, ours: list[float], raw: list[float], calls: list[str]) -> Case:
    def take(side: str, seconds: list[float]) -> float:
        calls.append(side)
        return seconds.pop(0)

    return Case(
        "copy",
        "copying",
        "moving",
        at_least,
        6,
        "GB",
        lambda: take("ours", ours),
        lambda: take("raw", raw),
    )


def measured(at_least: float | None) -> Result:
    # The first of each side is the round that does not count.
    return compare(case(at_least, [99, 4, 3, 8], [99, 2, 3, 2], []), rounds=3)


def test_sides_alternate_and_the_first_round_does_not_count() -> None:
    calls: list[str] = []
    result = compare(case(0.5, [9, 4, 3], [9, 2, 1], calls), rounds=2)
    assert calls == ["ours", "raw"] * 3
    assert (result.ours_s, result.raw_s) == ((4, 3), (2, 1))


def test_the_ratio_is_best_against_best_and_the_rounds_show_the_spread() -> None:
    result = measured(0.5)
    assert result.ratio == 2 / 3
    assert result.round_ratios == (0.25, 0.5, 1.0)
    assert "| 0.67  | 0.50 (0.25…1.00) | 0.5      | pass    | 2.00 GB/s | 3.00 GB/s |" in table(
        [result]
    )


def test_a_miss_is_called_a_miss_and_no_target_no_verdict() -> None:
    assert measured(0.66).verdict == "pass"
    assert measured(0.67).verdict == "miss"
    assert measured(None).verdict == "-"
