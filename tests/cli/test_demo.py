"""`make demo` exits, and the commands that it prints at its end work."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.cli.nodes import COMMAND

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parent.parent.parent


def recipe() -> list[str]:
    """The examples that the target names, in their order."""
    text = (ROOT / "Makefile").read_text()
    [lines] = re.findall(r"^demo:.*\n((?:\t.*\n)+)", text, re.MULTILINE)
    return re.findall(r"\t\$\(BIN\)/python (examples/\S+\.py)\n", lines)


def named(output: str) -> Iterator[list[str]]:
    """The commands that it says to continue with, but for those that do not end by themselves."""
    _, found, rest = output.partition("Continue with:")
    assert found, output
    for command in re.findall(r"\.venv/bin/lithify (.+)", rest):
        words = shlex.split(command, comments=True)
        if words[0] != "serve":
            yield words


@pytest.mark.slow
def test_the_demo_exits_and_names_the_next_steps(tmp_path: Path) -> None:
    assert recipe() == ["examples/demo.py", "examples/demo_topics.py"]
    for example in recipe():
        command = [sys.executable, str(ROOT / example)]
        done = subprocess.run(
            command, cwd=tmp_path, capture_output=True, text=True, timeout=900, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
    commands = list(named(done.stdout))
    assert len(commands) == 3
    for words in commands:
        shown = subprocess.run(
            [COMMAND, *words], cwd=tmp_path, capture_output=True, text=True, check=True
        )
        assert shown.stdout, words
    pages = re.findall(r"\S+\.md", done.stdout)
    assert pages
    assert all((ROOT / page).is_file() for page in pages)
