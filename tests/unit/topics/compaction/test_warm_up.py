"""Workers are forked from a process that has warmed up: they must have nothing left to load."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[4]


def test_after_warming_up_runs_load_no_more_compiled_code() -> None:
    command = [sys.executable, "-m", "tests.unit.topics.warm_child"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert not done.stdout.strip()
