"""Messages as JSON rows, read in pages; used by `tail` and by the HTTP reader.

`messages/message_json.py` has the format of a row. An entry that cannot be decoded is one row with
its id and an `error`, so that the rows after it can be read.

1. A `ReadStart` says where to begin: an entry, and the number of its messages to skip.
2. `read_rows` reads from there until it has `bytes_max` bytes, and returns where it stopped.
3. `place_of_last` counts back from the end by the message counts in the frames of the log.

The log is pinned only during a call, so a slow reader does not keep files from being deleted; what
is deleted between two calls is a gap. Nothing here changes a log: any thread may call it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lithify.errors import InvalidInput
from lithify.positions import POSITION_MAX
from lithify.topics.messages.entry_flags import message_count
from lithify.topics.messages.message import read_entry
from lithify.topics.messages.message_json import row_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lithify.log.log import Log
    from lithify.log.segments.frame import LogEntry

    Row = dict[str, Any]

__all__ = ["ReadStart", "place_of", "place_of_last", "read_rows"]

ROWS_BYTES_MAX = 2**20
ROW_BYTES = 256
"""Estimated size of a row without its key and value."""


@dataclass(frozen=True, slots=True)
class ReadStart:
    """The first entry to read, and the number of messages to skip from there."""

    position: int = 0
    skip: int = 0


def place_of(text: str) -> ReadStart:
    """Parse LEDGER:ENTRY."""
    parts = text.split(":")
    if len(parts) != 2 or not all(part.isdecimal() and part.isascii() for part in parts):
        raise InvalidInput(f"message id {text!r} must be LEDGER:ENTRY")
    ledger, entry = map(int, parts)
    if ledger > POSITION_MAX >> 32 or entry >= 2**32:
        raise InvalidInput(f"there is no message {text}")
    return ReadStart(ledger << 32 | entry)


def place_of_last(log: Log, count: int) -> ReadStart:
    """Where the last `count` messages begin; the first message if there are fewer."""
    if count <= 0:
        return ReadStart(log.last_position + 1)
    first = 0
    with log.snapshot("tail") as snapshot:
        for entry in snapshot.read_backward():
            first = entry.position
            count -= message_count(entry)
            if count <= 0:
                return ReadStart(first, -count)
    return ReadStart(first)


def read_rows(
    log: Log,
    place: ReadStart,
    *,
    partition: int,
    through: int = POSITION_MAX,
    limit: int | None = None,
    bytes_max: int = ROWS_BYTES_MAX,
) -> tuple[list[Row], ReadStart]:
    """(rows, where to continue): at most `limit` messages up to position `through`.

    Whole entries are read, so the last one may exceed `bytes_max`. Without rows the end is reached.
    """
    rows: list[Row] = []
    size_bytes, skip, following = 0, place.skip, place.position
    limit = POSITION_MAX if limit is None else limit
    with log.snapshot("tail") as snapshot:
        for entry in snapshot.read(place.position):
            if entry.position > through or size_bytes >= bytes_max or len(rows) >= limit:
                break
            for row in _rows_of(entry, partition):
                if skip:
                    skip -= 1
                elif len(rows) < limit:
                    rows.append(row)
                    size_bytes += ROW_BYTES + len(row.get("value") or row.get("value_base64") or "")
            following = entry.position + 1
    return rows, ReadStart(following, skip)


def _rows_of(entry: LogEntry, partition: int) -> Iterator[Row]:
    for message in read_entry(entry, partition):
        yield {"id": str(message.id), "error": message.error} if message.error else row_of(message)
