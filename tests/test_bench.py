"""The benchmarks run, tiny, and keep what they measure. Their figures are not checked."""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest

import bench.__main__ as program
from bench import page
from bench.areas import AREAS, ROWS
from bench.blobs_http import find_nginx
from bench.earlier import is_in_history
from bench.etcd import find_etcd
from bench.harness import Case, Result, compare, table
from bench.results import load_results, save

ROOT = Path(__file__).parent.parent

# Sessions of Spark or many processes of their own; two compile kernels of an earlier version.
SLOW = ["compact-small", "node-start", "directory-commands", "catalog-start"]
ABSENT = [
    row
    for row, found in (
        ("blob-http-get", find_nginx()),
        ("raft-three", find_etcd()),
        ("metastore-writes", find_etcd()),
        ("metastore-watch", find_etcd()),
        ("table-writes", find_etcd()),
        ("table-reads", find_etcd()),
        ("node-start", is_in_history()),
        ("directory-commands", is_in_history()),
        ("compact-duckdb", find_spec("duckdb")),
    )
    if not found
]
USES_SPARK = [
    row for area in AREAS if area.name in {"compaction", "blobs", "tables"} for row in area.rows
]


def run_bench(directory: Path, *options: str) -> str:
    command = [sys.executable, "-m", "bench", "--quick", "--dir", str(directory), *options]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert list(directory.iterdir()) == [], "it removes its data"
    return run.stdout


def measure(directory: Path, rows: list[str]) -> list[str]:
    """The names in the table of these rows."""
    options = [word for row in rows for word in ("--only", row)]
    lines = run_bench(directory, *options).splitlines()
    assert len({len(line) for line in lines}) == 1, "the columns stand below each other"
    names = [line.split("|")[1].strip() for line in lines[2:]]
    return [name for name in names if "(" not in name]


@pytest.mark.parametrize("spark", [True, False], ids=["with Spark", "without Spark"])
def test_every_row_is_measured_and_printed(tmp_path: Path, spark: bool) -> None:
    rows = [row for row in ROWS if (row in USES_SPARK) == spark and row not in SLOW]
    assert measure(tmp_path, rows) == [row for row in rows if row not in ABSENT]


@pytest.mark.slow
def test_slow_rows_are_measured_and_printed(tmp_path: Path) -> None:
    assert measure(tmp_path, SLOW) == [row for row in SLOW if row not in ABSENT]


def test_one_row_as_json_has_the_seconds_of_every_round(tmp_path: Path) -> None:
    (row,) = json.loads(run_bench(tmp_path, "--only", "open", "--json"))
    assert row["name"] == "open"
    assert row["at_least"] == 0.5
    assert row["verdict"] in {"pass", "miss"}
    assert len(row["ours_s"]) == len(row["raw_s"]) == 1
    assert row["ratio"] == min(row["raw_s"]) / min(row["ours_s"])


def options_for(tmp_path: Path) -> argparse.Namespace:
    return argparse.Namespace(
        dir=str(tmp_path), results=tmp_path / "results", quick=False, gib=None
    )


def test_a_row_that_raises_or_is_interrupted_costs_no_other_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def cases(row: str, directory: str, *, quick: bool, gib: float | None) -> object:
        if row == "open":
            raise KeyboardInterrupt
        if row == "scan-warm":
            raise OSError("no space left on device")
        return 1, [replace(case(0.5, [9, 4], [9, 2], []), name=row)]

    monkeypatch.setattr(program, "cases", cases)
    results, failed = program.run(["append", "scan-warm", "rewrite"], options_for(tmp_path))
    assert [result.case.name for result in results] == ["append", "rewrite"]
    assert failed == ["scan-warm"]
    with pytest.raises(KeyboardInterrupt):
        program.run(["scan-cold", "open"], options_for(tmp_path))
    assert set(load_results(tmp_path / "results")) == {"append", "scan-cold", "rewrite"}
    printed = capsys.readouterr().err
    assert "no space left on device" in printed
    assert "python -m bench --from open" in printed


def test_progress_estimates_by_the_durations_of_the_last_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program.announce("compact", ["compact", "compact-next", "open"], 4, {"compact": 90, "open": 30})
    line = capsys.readouterr().err
    assert line.startswith("[2/4] compact: about 90 s; all about 3 min, until ")
    assert line.endswith("(1 rows never timed)\n")


def test_a_result_file_says_how_it_was_measured(tmp_path: Path) -> None:
    result = measured(0.67)
    facts = {"command": "python -m bench --only open", "machine": "a machine"}
    save(tmp_path, "open", [result], **facts, load=(0.25, 1.5), seconds=2.25)
    read = load_results(tmp_path)["open"]
    assert (read.command, read.machine) == tuple(facts.values())
    assert (read.load, read.seconds) == ("0.2 before, 1.5 after", 2.2)
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d", read.date)
    assert read.commit is None or re.fullmatch(r"[0-9a-f]{10}\+?", read.commit)
    assert read.lines == (json.loads(json.dumps(result.to_dict())),)


PICTURES = {path.name: path.read_text(encoding="utf-8") for path in page.PICTURES.glob("bench-*")}


def test_the_page_says_what_the_result_files_say() -> None:
    assert page.problems(page.PAGE.read_text(encoding="utf-8"), load_results(), PICTURES) == []


def test_a_page_that_does_not_fit_is_found() -> None:
    text, results = page.PAGE.read_text(encoding="utf-8"), load_results()
    assert page.problems(text.replace("| 1.14 |", "| 1.41 |"), results, PICTURES)
    assert page.problems(text, results, {**PICTURES, "bench-log.svg": "<svg/>"})
    missed = [line["name"] for m in results.values() for line in m.lines if page.is_miss(line)]
    for name in missed:
        unexplained = text.replace(f"**{name}.**", name)
        assert any(name in problem for problem in page.problems(unexplained, results, PICTURES))
    passed = text.replace("### Misses\n", "### Misses\n\n**open.** It is slow.\n", 1)
    assert page.problems(passed, results, PICTURES) == ["The log: open is explained, but no miss"]


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


def test_a_miss_is_a_miss_and_without_a_target_there_is_no_verdict() -> None:
    assert measured(0.66).verdict == "pass"
    assert measured(0.67).verdict == "miss"
    assert measured(None).verdict == "-"
