"""How a run in progress is shown: one bar per phase on a terminal, nothing in a file."""

from __future__ import annotations

import io
import sys
from typing import TYPE_CHECKING, Any

from lithify.cli.run_progress import TOPICS

if TYPE_CHECKING:
    import pytest


class Terminal(io.StringIO):
    """Takes what a person would see."""

    def isatty(self) -> bool:
        return True


def row(phase: str, done: int, total: int, status: str = "RUNNING") -> dict[str, Any]:
    name = "persistent://public/default/orders"
    return {"topic": name, "status": status, "phase": phase, "done": done, "total": total}


def shown_on(stderr: io.StringIO, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(sys, "stderr", stderr)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    with TOPICS.progress() as tell:
        tell(row("WAITING", 0, 0))
        for done in range(0, 65, 8):
            tell(row("index", done * 2**20, 64 * 2**20))
        tell(row("survivors", 1, 4))
        tell(row("", 0, 0, "SUCCESS"))
    return stderr.getvalue()


def test_a_terminal_shows_each_phase_with_its_bytes_and_the_time_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shown = shown_on(Terminal(), monkeypatch)
    assert "orders  waiting" in shown
    assert "orders  index" in shown
    assert "64.0 MiB of 64.0 MiB" in shown
    assert "orders  survivors" in shown
    assert "25%" in shown
    assert "0:00:00" in shown, "of what is done"
    assert "-:--:--" in shown, "of what has only begun"


def test_a_file_gets_nothing_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert shown_on(io.StringIO(), monkeypatch) == ""
