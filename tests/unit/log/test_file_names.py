from __future__ import annotations

import pytest

from lithify.log.file_names import (
    FileKind,
    FileName,
    dead_set_name,
    key_index_name,
    parse_name,
    pin_name,
    segment_name,
)


@pytest.mark.parametrize(
    ("name", "kind", "segment_id", "attempt"),
    [
        (segment_name(7), FileKind.SEGMENT, 7, ""),
        (segment_name(9, "5f3a"), FileKind.REWRITTEN, 9, "5f3a"),
        (key_index_name(segment_name(7)), FileKind.KEY_INDEX, 7, ""),
        (key_index_name(segment_name(9, "5f3a")), FileKind.KEY_INDEX, 9, "5f3a"),
        (dead_set_name(7, "5f3a"), FileKind.DEAD_SET, 7, "5f3a"),
        (pin_name("0123abcd"), FileKind.PIN, -1, ""),
        ("LOCK", FileKind.LOCK, -1, ""),
        ("MANIFEST", FileKind.MANIFEST, -1, ""),
        ("JOURNAL", FileKind.JOURNAL, -1, ""),
        ("HISTORY", FileKind.HISTORY, -1, ""),
        ("ERASE", FileKind.ERASE, -1, ""),
        ("MANIFEST.tmp", FileKind.TEMPORARY, -1, ""),
    ],
)
def test_names_are_parsed(name: str, kind: FileKind, segment_id: int, attempt: str) -> None:
    assert parse_name(name) == FileName(name, kind, segment_id, attempt)


def test_names_are_those_of_the_format() -> None:
    assert segment_name(7) == "000000000007.seg"
    assert segment_name(9, "5f3a") == "000000000009-5f3a.seg"
    assert key_index_name("000000000009-5f3a.seg") == "000000000009-5f3a.keys"
    assert dead_set_name(7, "5f3a") == "000000000007-5f3a.dead"
    assert pin_name("5f3a9c") == "5f3a9c.pin"


@pytest.mark.parametrize(
    "name",
    [
        "README",
        "7.seg",
        "000000000007.segment",
        "000000000007-.seg",
        "000000000007-5F3A.seg",
        "x000000000007.seg",
        "0000000000007.seg",
        "manifest",
        "lost+found",
        "000000000007.seg\n",
        "",
    ],
)
def test_foreign_names_are_recognised(name: str) -> None:
    assert parse_name(name).kind is FileKind.FOREIGN
