"""A snapshot that anyone can read: the payloads, each with a semicolon."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lithify.catalog.update_log.replay import LoggedSnapshot, LoggedUpdate

CHUNK_BYTES = 10_000


class Joined:
    """The `SnapshotFold` of updates that are texts."""

    def __init__(self) -> None:
        self._text = b""

    async def load(self, snapshot: LoggedSnapshot) -> None:
        self._text = b"".join(snapshot.chunks)

    def apply(self, update: LoggedUpdate) -> None:
        self._text += update.payload + b";"

    def chunks(self) -> Iterable[bytes]:
        return cut(self._text)


def cut(text: bytes, size_bytes: int = CHUNK_BYTES) -> list[bytes]:
    return [text[start : start + size_bytes] for start in range(0, len(text), size_bytes)]
