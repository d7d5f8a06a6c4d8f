"""Pages and code use plain words, links find their headings, pictures match their script."""

from __future__ import annotations

import io
import re
import tokenize
from pathlib import Path

import pytest

from bench import pictures

ROOT = Path(__file__).parent.parent

PAGES = (
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "README.md",
    *(str(path.relative_to(ROOT)) for path in sorted((ROOT / "docs").rglob("*.md"))),
    *(str(path.relative_to(ROOT)) for path in sorted((ROOT / "docs/pictures").glob("*.svg"))),
)
WORDS = "CONTRIBUTING.md"
"""The page with the table of phrases, which says what to write instead of them."""

PHRASES = re.compile(
    r"""\b(
        whoever | somebody | anybody | everybody | nobody | anew
      | g[ai]v(e|es|en|ing)\s(\w+\s){0,3}back
      | (put|puts|putting)\s(\w+\s)?back
      | le(t|ts|tting)\sgo
      | (are|be|is)\sno\smore | any\smore
      | made\s(again|anew) | make\s(again|anew)
      | what\sstands | st(ands?|ood)\s(behind|beside|in|there|under)
      | so\s(long|many|often)
      | (goes|go|going|gone|went)\son\b
      | (take|takes|taken|took)\sup(?!\sto)
      | under\sway | on\sits\sway
      | look(s|ed)?\s(after|into|whether) | a\slook
      | sweeps?\sup | one's\sown
      | (one|a)\s(task|thread|row|bit|file|page|table|fsync|group|line|record)\san?\s\w+
    )\b""",
    re.VERBOSE | re.IGNORECASE,
)

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

NAME_PHRASES = re.compile(
    r"""_(
        whoever | somebody | someone | anybody | everybody | nobody | who | anew
      | goes_on | go_on | went_on | going_on | under_way | on_its_way
      | lets?_go | (gives?|given|giving)_(\w+_)?back | made_again | any_more | once_more
      | so_(many|much|long|often) | put_out | called_off | passed_over | left_alone
      | asks? | asked | tells? | told | hears? | heard | looks?_(at|after|for) | looked_(at|for)
      | (is|are)_none | says_so | tried_again | given_up | holds?_up | stands?
    )(?=_|$) | ^test_what_""",
    re.VERBOSE,
)
"""Phrases that the names of tests do not have, either."""


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


def text_of(name: str) -> str:
    """A page; of the page with the table without what it quotes."""
    text = (ROOT / name).read_text(encoding="utf-8")
    return re.sub(r'^\|.*\n|"[^"]*"', "", text, flags=re.MULTILINE) if name == WORDS else text


def anchors_of(page: Path) -> set[str]:
    """The names by which links find the headings of a page."""
    text = re.sub(
        r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL
    )
    titles = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def test_pages_use_the_words_of_the_field() -> None:
    wrong = {name: found_in(text_of(name)) for name in PAGES}
    assert {name: phrases for name, phrases in wrong.items() if phrases} == {}


CODE = [
    path
    for directory in ("src/lithify", "tests", "bench", "examples")
    for path in sorted((ROOT / directory).rglob("*.py"))
    if not path.name.endswith("_pb2.py") and path != Path(__file__)
]
"""All code but this file, which has the phrases."""


def test_code_uses_the_words_of_the_field() -> None:
    wrong = {
        str(path.relative_to(ROOT)): found_in(
            texts_in(path.read_text(encoding="utf-8")), CODE_PHRASES
        )
        for path in CODE
    }
    assert {name: phrases for name, phrases in wrong.items() if phrases} == {}


def test_names_of_tests_use_the_words_of_the_field() -> None:
    files = sorted(ROOT.joinpath("tests").rglob("*.py"))
    tests = (re.findall(r"def (test_\w+)", path.read_text(encoding="utf-8")) for path in files)
    assert [name for names in tests for name in names if NAME_PHRASES.search(name)] == []


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


def test_links_to_headings_find_them() -> None:
    missing = []
    for name in PAGES:
        page = ROOT / name
        for path, anchor in re.findall(
            r"\]\(([^)#\s]*)#([^)\s]+)\)", page.read_text(encoding="utf-8")
        ):
            target = page.parent / path if path else page
            if "://" not in path and anchor not in anchors_of(target):
                missing.append(f"{name}: {path}#{anchor}")
    assert missing == []


@pytest.mark.parametrize(
    "text",
    [
        "Whoever asks gets it.",
        "gives its space back",
        "the process is let go after an hour",
        "Let a key be no more.",
        "one task a segment",
        "The name stands in the manifest.",
        "files that are no more",
        "after so many runs",
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
