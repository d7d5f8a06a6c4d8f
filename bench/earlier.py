"""The sources of an earlier version, as the other side of a comparison.

They are taken from the history of this repository and run with the Python and the dependencies of
this installation. A clone without that history has no such rows.
"""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tarfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["EARLIER", "environment", "extract", "is_in_history", "serving_until_ready"]

ROOT = Path(__file__).parent.parent
EARLIER = "5369ceeb279d4c9d89a52e2b3e3f991c67ba3377"
"""The last commit in which a node had no cluster and no catalog."""


def is_in_history() -> bool:
    """Does this clone have it?"""
    command = ["git", "cat-file", "-e", EARLIER]
    return not subprocess.run(command, cwd=ROOT, capture_output=True, check=False).returncode


def extract(directory: str) -> str:
    """Its package, in this directory; the path for Python."""
    command = ["git", "archive", EARLIER, "src"]
    found = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=True)
    with tarfile.open(fileobj=io.BytesIO(found.stdout)) as archive:
        archive.extractall(directory, filter="data")
    return f"{directory}/src"


def environment(sources: str | None = None) -> Mapping[str, str]:
    """Of a process that runs these sources, or those of this installation.

    Modules are compiled once, as after an installation.
    """
    kept = {name: each for name, each in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return kept if sources is None else {**kept, "PYTHONPATH": sources}


@contextmanager
def serving_until_ready(data: str, sources: str | None = None) -> Iterator[int]:
    """Runs `lithify serve` while the block runs, which begins when it is ready; its process id."""
    options = ("--data", data, "--pulsar-port", "0", "--http-port", "0")
    command = [sys.executable, "-m", "lithify", "serve", *options]
    with subprocess.Popen(
        command, env=environment(sources), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        assert process.stdout is not None
        try:
            lines = [process.stdout.readline() for _ in range(2)]
            assert all(lines), "the node did not start"
            yield process.pid
        finally:
            process.terminate()
