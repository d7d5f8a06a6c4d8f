"""Append-only files of lines with checksums: the journal and the history of a log.

    crc space json newline

`crc` is the CRC-32C of `json` as 8 lower-case hexadecimal digits. `json` is compact and has no
newline, so every record is one readable line.

The first line creates the file atomically; later lines are appended and fsynced. The last line is
**torn** if its newline is missing, or if its CRC is wrong and it has a zero byte: JSON has none,
but a block that was never written to disk consists of them. A torn line was never acknowledged:
reads ignore it, and the next append truncates it. Any other mismatch raises `DamagedFile`.
"""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING, Any, TypeVar

from lithify.checksum import crc32c
from lithify.errors import DamagedFile, LithifyError, WriteFailed
from lithify.fs import read_file, write_atomic

if TYPE_CHECKING:
    from collections.abc import Callable

    from lithify.fs import FileSystem

__all__ = ["append_line", "encode_line", "parse_lines", "read_lines", "read_value"]

T = TypeVar("T")

_CRC_DIGITS = 8


def encode_line(text: str) -> bytes:
    """Encode one line with its checksum."""
    data = text.encode()
    return b"%08x %b\n" % (crc32c(data), data)


def parse_lines(data: bytes, path: str) -> tuple[list[tuple[int, bytes]], int]:
    """Check all CRCs; returns (offset, JSON) of each complete line, and the end of the last one."""
    lines: list[tuple[int, bytes]] = []
    offset = 0
    while offset < len(data):
        end = data.find(b"\n", offset) + 1 or len(data)
        line = data[offset:end]
        wrong = _error_in(line)
        if wrong is not None:
            if end == len(data) and _is_torn(line):
                break
            raise DamagedFile(path, offset, wrong)
        lines.append((offset, line[_CRC_DIGITS + 1 : -1]))
        offset = end
    return lines, offset


def read_lines(fs: FileSystem, path: str) -> tuple[list[tuple[int, bytes]], int]:
    """Read a file and parse it with `parse_lines`."""
    return parse_lines(read_file(fs, path), path)


def read_value(
    fs: FileSystem, path: str, version: int, make: Callable[[dict[str, Any]], T]
) -> T | None:
    """Make a value of the only line of a file.

    None if the file is missing, unreadable or damaged, or has another version.
    """
    if not fs.exists(path):
        return None
    try:
        lines, _ = read_lines(fs, path)
        # As text: the decoder would first find out the encoding of bytes.
        row = json.loads(lines[0][1].decode())
        return make(row) if row["version"] == version else None
    except (LithifyError, OSError, ValueError, KeyError, TypeError, IndexError):
        return None


def append_line(fs: FileSystem, path: str, line: bytes, durable: int | None = None) -> int:
    """Append an encoded line; durable when it returns. Returns the new size of the file.

    A crash during the append leaves the file without the line, or with a torn one. After an error
    the file has the same complete lines as before. `durable` is the size that the last append
    returned, for a file that only the caller writes: it saves reading the file.
    """
    try:
        if durable is None and not fs.exists(path):
            write_atomic(fs, path, line)
            return len(line)
        end = read_lines(fs, path)[1] if durable is None else durable
        with fs.open_append(path) as file:
            try:
                torn = file.size() > end
                if torn:
                    file.truncate(end)
                # An earlier append may have failed and truncated. If a truncation were not durable
                # before the write, a power cut could mix the truncated bytes into the new line.
                if torn or durable is None:
                    file.fsync()
                file.write(line)
                file.fsync()
            except OSError:
                # A partly written line must not stay between complete ones. If the truncation
                # fails as well, the line is torn and the next append truncates it.
                with contextlib.suppress(OSError):
                    file.truncate(end)
                raise
            return file.size()
    except OSError as error:
        raise WriteFailed(path, error) from error


def _error_in(line: bytes) -> str | None:
    """Why a line is not complete and valid; None if it is."""
    if not line.endswith(b"\n"):
        return "the line has no end"
    text = line[_CRC_DIGITS + 1 : -1]
    written, computed = line[: _CRC_DIGITS + 1], b"%08x " % crc32c(text)
    if written != computed:
        return f"CRC-32C is {computed.decode()}but the line says {written!r}"
    return None


def _is_torn(line: bytes) -> bool:
    # A complete line with one flipped bit, in its newline or resulting in a zero byte, is not torn:
    # it was acknowledged, so it is damaged.
    if not line.endswith(b"\n"):
        return _error_in(line[:-1] + b"\n") is not None
    before, zero, after = line.partition(b"\0")
    flipped = (before + bytes([1 << bit]) + after for bit in range(8))
    return bool(zero) and all(_error_in(each) is not None for each in flipped)
