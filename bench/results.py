"""Result files: what `python -m bench` has measured, one JSON file per row in `bench/results`.

    row       the name that `--only` takes
    date      when the row ended, UTC
    commit    of the sources; with `+` where the working tree differed from it
    command   that measured it
    load      of the machine over one minute, before and after the row
    machine   processor, cores, memory, kernel, file system, Python
    seconds   that the whole row took; the estimate of the next run uses it
    remark    what a reader has to know besides, or nothing
    lines     one per case: `Result.to_dict()`

`null` stands where a figure was not recorded. A file is replaced in one step after its row is
complete: a run that is interrupted leaves the rows before it and the older file of its own row.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import subprocess
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.areas import ROWS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.harness import Result

__all__ = ["RESULTS", "Measured", "describe_machine", "load_results", "save"]

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "bench" / "results"


@dataclass(frozen=True, slots=True)
class Measured:
    """The content of one result file."""

    row: str
    date: str
    commit: str | None
    command: str
    load: str | None
    machine: str
    seconds: float | None
    remark: str | None
    lines: tuple[dict[str, Any], ...]


def load_results(directory: Path = RESULTS) -> dict[str, Measured]:
    """All result files by row, in the order of the page."""
    found = {}
    for row in ROWS:
        path = directory / f"{row}.json"
        if path.exists():
            values = json.loads(path.read_text(encoding="utf-8"))
            found[row] = Measured(**{**values, "lines": tuple(values["lines"])})
    return found


def save(
    directory: Path,
    row: str,
    results: Sequence[Result],
    *,
    command: str,
    machine: str,
    load: tuple[float, float],
    seconds: float,
) -> None:
    """Replace the row's file."""
    measured = Measured(
        row=row,
        date=datetime.now(UTC).strftime("%Y-%m-%d %H:%M"),
        commit=_commit(),
        command=command,
        load=f"{load[0]:.1f} before, {load[1]:.1f} after",
        machine=machine,
        seconds=round(seconds, 1),
        remark=None,
        lines=tuple(result.to_dict() for result in results),
    )
    directory.mkdir(parents=True, exist_ok=True)
    aside = directory / f".{row}.json"
    text = json.dumps(asdict(measured), indent=2, ensure_ascii=False)
    aside.write_text(text + "\n", encoding="utf-8")
    aside.replace(directory / f"{row}.json")


def describe_machine(directory: str) -> str:
    """What a reader has to know about it, in one line; `directory` is where the data goes."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    cores = len(os.sched_getaffinity(0))
    return (
        f"{_processor()}, {cores} cores, {memory:.0f} GB of memory, "
        f"Linux {platform.release()}, {_file_system(directory)}, "
        f"Python {platform.python_version()}"
    )


def _processor() -> str:
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        pairs = (line.partition(":") for line in file)
        facts = {name.strip(): value.strip() for name, _, value in pairs}
    name = facts.get("model name", platform.machine())
    virtual = " under a hypervisor" if "hypervisor" in facts.get("flags", "").split() else ""
    model = f" (family {facts['cpu family']}, model {facts['model']})" if "model" in facts else ""
    return f"{name}{model}{virtual}"


def _file_system(directory: str) -> str:
    command = ["df", "--output=fstype", directory]
    found = subprocess.run(command, capture_output=True, text=True, check=True)
    return found.stdout.split()[-1]


def _commit() -> str | None:
    def git(*words: str) -> str:
        command = ["git", *words]
        return subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, check=True
        ).stdout.strip()

    with contextlib.suppress(OSError, subprocess.CalledProcessError):
        changed = git("status", "--porcelain", "--", "src", "bench/*.py")
        return git("rev-parse", "--short=10", "HEAD") + ("+" if changed else "")
    return None
