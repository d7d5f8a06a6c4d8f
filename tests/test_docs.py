"""The pages keep their own rules: plain words, and pictures that are what their script draws."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from bench import pictures

ROOT = Path(__file__).parent.parent

CLEAN = (
    "README.md",
    "docs/benchmarks.md",
    "docs/blob-replication.md",
    "docs/blobs.md",
    "docs/glossary.md",
    "docs/how-it-works.md",
    "docs/index.md",
    "docs/spark.md",
    "docs/topic-compaction.md",
    *(str(path.relative_to(ROOT)) for path in sorted((ROOT / "docs/adr").glob("*.md"))),
)
"""Pages that are free of the phrases below; the table in CONTRIBUTING.md says what to write."""

PHRASES = re.compile(
    r"""\b(
        whoever | somebody | anybody | everybody | nobody
      | g[ai]v(e|es|en|ing)\s(\w+\s){0,3}back
      | le(t|ts|tting)\sgo
      | be\sno\smore
      | made\s(again|anew) | make\s(again|anew)
      | what\sstands
      | (for|after)\sso\slong
      | (goes|go|going|gone|went)\son\b
      | (take|takes|taken|took)\sup(?!\sto)
      | under\sway
      | look(s|ed)?\safter
      | (one|a)\s(task|thread|row|bit|file|run|page|table|fsync|group)\san?\s\w+
    )\b""",
    re.VERBOSE | re.IGNORECASE,
)


def found_in(page: str) -> list[str]:
    text = re.sub(r"\s+", " ", page)
    return [text[max(0, m.start() - 30) : m.end() + 20] for m in PHRASES.finditer(text)]


def test_pages_use_the_words_of_the_field() -> None:
    wrong = {name: found_in((ROOT / name).read_text(encoding="utf-8")) for name in CLEAN}
    assert {name: phrases for name, phrases in wrong.items() if phrases} == {}


@pytest.mark.parametrize(
    "text",
    [
        "Whoever asks gets it.",
        "gives its space back",
        "the process is let go after an hour",
        "Let a key be no more.",
        "one task a segment",
        "while a run goes\non",
        "An index is made again.",
    ],
)
def test_phrases_are_found(text: str) -> None:
    assert found_in(text)


@pytest.mark.parametrize("name", pictures.DRAWN)
def test_pictures_are_what_their_script_draws(name: str) -> None:
    drawn = pictures.DRAWN[name]()
    assert (pictures.PICTURES / name).read_text(encoding="utf-8") == drawn, (
        "run python -m bench.pictures"
    )
