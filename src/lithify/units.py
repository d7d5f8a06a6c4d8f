"""Sizes in text: `64MiB`, `64M`, `64MB`, `67108864`.

KiB, MiB, GiB and TiB are powers of 1024; so are K, M, G and T alone, as in `dd` and `ls`. KB, MB,
GB and TB are powers of 1000.
"""

from __future__ import annotations

import re

from lithify.errors import InvalidInput

__all__ = ["parse_bytes"]

_SIZE = re.compile(r"([0-9]{1,18}) ?(?:([kmgt])(i?b)?|b)?", re.IGNORECASE | re.ASCII)


def parse_bytes(text: str) -> int:
    """Parse a size; returns bytes."""
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise InvalidInput(f"size {text!r} must be a number of bytes, or like 64MiB or 64MB")
    number, unit, suffix = found.groups()
    if unit is None:
        return int(number)
    base = 1000 if (suffix or "").lower() == "b" else 1024
    power: int = base ** ("kmgt".index(unit.lower()) + 1)
    return int(number) * power
