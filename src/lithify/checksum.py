"""CRC-32C (Castagnoli), the one checksum of every Lithify format."""

from __future__ import annotations

from fastcrc import crc32

__all__ = ["Buffer", "crc32c"]

Buffer = bytes | bytearray | memoryview


def crc32c(data: Buffer, start: int = 0) -> int:
    """The CRC-32C of `data`; `start` is the CRC of what came before it."""
    return crc32.iscsi(data, start)
