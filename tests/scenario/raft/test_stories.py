"""Every story has the expected output. `python -m tests.scenario.raft` plays them."""

from __future__ import annotations

from pathlib import Path

import pytest

from lithify.testing.raft_scenarios import play

STORIES = sorted(Path(__file__).parent.glob("*.txt"))


@pytest.mark.parametrize("path", STORIES, ids=lambda path: path.stem)
def test_story(path: Path) -> None:
    told = path.read_text(encoding="utf-8")
    assert play(told) == told


def test_every_story_says_what_it_is_about() -> None:
    assert len(STORIES) >= 30
    assert [path.name for path in STORIES if not path.read_text().startswith("# ")] == []
