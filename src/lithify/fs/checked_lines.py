"""Files of checked lines: the journal and the history of a log.

    crc space json newline

`crc` is the CRC-32C of `json` as 8 lower-case hexadecimal digits; `json` is compact and holds no
newline, so that a person can read the file and a program can trust it.

The first line creates the file in one atomic step; later ones are appended and fsynced. A last
line is **torn** when its newline is missing, or when its CRC is wrong and it has a zero byte,
which no JSON has but a block that never arrived is full of. A torn line was never acknowledged: it
is ignored when read and cut before the next append. Anything else that is wrong is `DamagedFile`.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from lithify.checksum import crc32c
from lithify.errors import DamagedFile, WriteFailed
from lithify.fs import read_file, write_atomic

if TYPE_CHECKING:
    from lithify.fs import FileSystem

__all__ = ["append_line", "encode_line", "parse_lines", "read_lines"]

_CRC_DIGITS = 8


def encode_line(text: str) -> bytes:
    """One line of the file."""
    data = text.encode()
    return b"%08x %b\n" % (crc32c(data), data)


def parse_lines(data: bytes, path: str) -> tuple[list[tuple[int, bytes]], int]:
    """The JSON of each whole line with its offset, every CRC checked, and where they end."""
    lines: list[tuple[int, bytes]] = []
    offset = 0
    while offset < len(data):
        end = data.find(b"\n", offset) + 1 or len(data)
        line = data[offset:end]
        wrong = _what_is_wrong(line)
        if wrong is not None:
            if end == len(data) and _is_torn(line):
                break
            raise DamagedFile(path, offset, wrong)
        lines.append((offset, line[_CRC_DIGITS + 1 : -1]))
        offset = end
    return lines, offset


def read_lines(fs: FileSystem, path: str) -> tuple[list[tuple[int, bytes]], int]:
    """`parse_lines` of a file."""
    return parse_lines(read_file(fs, path), path)


def append_line(fs: FileSystem, path: str, line: bytes) -> None:
    """Add an encoded line; durable when it returns.

    A crash in between leaves the file without the line, or with a torn one. An error leaves the
    lines as they were.
    """
    try:
        if not fs.exists(path):
            write_atomic(fs, path, line)
            return
        _, end = read_lines(fs, path)
        with fs.open_append(path) as file:
            try:
                if file.size() > end:
                    file.truncate(end)
                # The cut may also be that of an earlier append that failed. Were it not durable, a
                # power cut could mix the bytes that were cut into the new line.
                file.fsync()
                file.write(line)
                file.fsync()
            except OSError:
                # A line that failed to reach the disk must not become part of the file's middle.
                # If the cut fails as well, the line is torn and the next append cuts it.
                with contextlib.suppress(OSError):
                    file.truncate(end)
                raise
    except OSError as error:
        raise WriteFailed(path, error) from error


def _what_is_wrong(line: bytes) -> str | None:
    """Why a line is not whole, `None` if it is."""
    if not line.endswith(b"\n"):
        return "the line has no end"
    text = line[_CRC_DIGITS + 1 : -1]
    written, computed = line[: _CRC_DIGITS + 1], b"%08x " % crc32c(text)
    if written != computed:
        return f"CRC-32C is {computed.decode()}but the line says {written!r}"
    return None


def _is_torn(line: bytes) -> bool:
    # A whole line with one flipped bit, in its newline or to a zero, is not torn: it was
    # acknowledged.
    if not line.endswith(b"\n"):
        return _what_is_wrong(line[:-1] + b"\n") is not None
    before, zero, after = line.partition(b"\0")
    flipped = (before + bytes([1 << bit]) + after for bit in range(8))
    return bool(zero) and all(_what_is_wrong(each) is not None for each in flipped)
