from __future__ import annotations

import pytest

from lithify.errors import InvalidInput
from lithify.units import parse_bytes


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("67108864", 2**26),
        ("512B", 512),
        ("1KiB", 2**10),
        ("64MiB", 2**26),
        ("64M", 2**26),
        ("64m", 2**26),
        ("1GB", 10**9),
        ("1gb", 10**9),
        ("1GiB", 2**30),
        ("2 TB", 2 * 10**12),
        ("2TiB", 2**41),
    ],
)
def test_a_size_is_read_as_it_is_meant(text: str, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize(
    "text", ["", "B", "GiB", "1.5GiB", "-1", "1PB", "1GiBB", "1i", "٣", "9" * 19]
)
def test_an_invalid_size_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="must be a number of bytes"):
        parse_bytes(text)
