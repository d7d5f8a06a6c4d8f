"""Golden files of lines `name hexadecimal`."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def named_bytes(path: Path) -> dict[str, bytes]:
    lines = (line.split() for line in path.read_text().splitlines())
    return {name: bytes.fromhex(data) for name, data in lines}
