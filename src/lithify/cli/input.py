"""The input of commands: NAME=VALUE pairs, lines of stdin, files, and confirmations.

Used by the modules of this package only.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Protocol, cast

import typer

from lithify.errors import InvalidInput, ReadFailed

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = ["confirm_delete", "file_pieces", "line_groups", "pair", "stdin_pieces"]


def pair(what: str, text: str) -> tuple[str, str]:
    """The two parts of an option `NAME=VALUE`."""
    name, found, value = text.partition("=")
    if not found or not name:
        raise InvalidInput(f"{what} {text!r} must be NAME=VALUE")
    return name, value


def confirm_delete(what: str, *, yes: bool) -> None:
    """Ask for confirmation before data is deleted, if stdin is a terminal."""
    if not yes and sys.stdin.isatty():
        typer.confirm(f"Delete {what}? This cannot be undone.", abort=True, err=True)


class _Stdin(Protocol):
    """The type of binary stdin with `read1`, which its declared type lacks."""

    def read1(self, size: int, /) -> bytes:
        """Read the available bytes, up to `size`; none at the end."""


def stdin_pieces(size: int) -> Iterator[bytes]:
    """Stdin, in pieces as they arrive."""
    stdin = cast("_Stdin", sys.stdin.buffer)
    while piece := stdin.read1(size):
        yield piece


def file_pieces(path: str, size: int) -> Iterator[bytes]:
    """A file, in pieces; opened at once."""
    from lithify.fs import LocalFileSystem

    file = LocalFileSystem().open_read(path)

    def pieces() -> Iterator[bytes]:
        offset = 0
        with file:
            while True:
                try:
                    piece = file.pread(size, offset)
                except OSError as error:
                    raise ReadFailed(path, offset, error) from error
                if not piece:
                    return
                offset += len(piece)
                yield piece

    return pieces()


def line_groups(pieces: Iterable[bytes]) -> Iterator[list[bytes]]:
    """The lines of a stream; lines that end in the same piece are one group."""
    begun: list[bytes] = []
    for piece in pieces:
        first, *rest = piece.split(b"\n")
        begun.append(first)
        if rest:
            yield [b"".join(begun), *rest[:-1]]
            begun = [rest[-1]]
    if any(begun):
        yield [b"".join(begun)]
