"""Pages and code keep their own rules: plain words, and pictures that match their script."""

from __future__ import annotations

import io
import re
import tokenize
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

CLEAN_CODE = ("*", "blobs/*", "fs/*", "http/*", "liveset/*", "node/*", "pipeline/*", "raft/core/*")
"""Packages whose docstrings, comments and texts are free of the phrases above and below."""

NOT_CLEAN = frozenset({"blobs/compactions.py"})

CODE_PHRASES = re.compile(
    r"""\b(
        a\slook | look(s|ed|ing)?\s(at|after)
      | any\smore
      | so\s(long|many)
      | stands?\s(at|behind|beside|in|there|under)
      | on\s(its|their)\sway
      | hear(s|d)\sof
      | what\s(becomes|became|comes|came)\sof
      | whose\sfortune
      | who\s(asks|reads|writes)
      | take[sn]?\sover | took\sover
      | put\soff | left\salone | passed\sover
      | upkeep
      | wanted\selsewhere
      | (bytes|entries|messages|runs)\sa\s(second|minute|tick)
    )\b""",
    re.VERBOSE | re.IGNORECASE,
)


def found_in(page: str, *more: re.Pattern[str]) -> list[str]:
    text = re.sub(r"\s+", " ", page)
    return [
        text[max(0, m.start() - 30) : m.end() + 20]
        for pattern in (PHRASES, *more)
        for m in pattern.finditer(text)
    ]


def texts_in(code: str) -> str:
    """The comments and strings of a module; a string without a space is a name, and no text."""
    lines = io.StringIO(code).readline
    kinds = tokenize.COMMENT, tokenize.STRING
    texts = (token.string for token in tokenize.generate_tokens(lines) if token.type in kinds)
    return "\n".join(text.lstrip("#") for text in texts if " " in text)


def test_pages_use_the_words_of_the_field() -> None:
    wrong = {name: found_in((ROOT / name).read_text(encoding="utf-8")) for name in CLEAN}
    assert {name: phrases for name, phrases in wrong.items() if phrases} == {}


def test_code_uses_the_words_of_the_field() -> None:
    root = ROOT / "src/lithify"
    files = [path for pattern in CLEAN_CODE for path in sorted(root.glob(f"{pattern}.py"))]
    names = {str(path.relative_to(root)): path for path in files}
    assert names.keys() > NOT_CLEAN
    wrong = {
        name: found_in(texts_in(path.read_text(encoding="utf-8")), CODE_PHRASES)
        for name, path in names.items()
        if name not in NOT_CLEAN
    }
    assert {name: phrases for name, phrases in wrong.items() if phrases} == {}


@pytest.mark.parametrize(
    "code",
    [
        '"""What a look answers."""',
        "x = 1  # nobody has it any more",
        "# Those that are\n# under way.\n",
        'raise ValueError(f"{x} bytes a second")',
        'log.info("the client is let go")',
    ],
)
def test_phrases_are_found_in_code(code: str) -> None:
    assert found_in(texts_in(code), CODE_PHRASES)


def test_names_and_keys_are_no_text() -> None:
    assert not found_in(texts_in('nobody = {"nobody": whoever}'), CODE_PHRASES)


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
