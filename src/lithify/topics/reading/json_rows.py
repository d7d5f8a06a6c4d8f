"""Messages as rows for JSON, read in pieces: what `tail` and the HTTP port's reader share.

    {"id": "3:17", "publish_time_ms": …, "event_time_ms": 0, "producer": "p", "sequence_id": 4,
     "properties": {}, "key": "k", "value": "text"}

What is no UTF-8 stands under `key_base64` and `value_base64` instead. A key or value that there is
none of is null. An entry that cannot be opened is one row with its id and an `error`: it must not
keep the rest from being read.

1. A `ReadStart` says where to begin: an entry, and how many of its messages are left out.
2. `read_rows` reads on from there until it has `bytes_max` bytes, and says where it stopped.
3. `place_of_last` counts back from the end by the numbers in the log's frames.

The log is pinned within a call only, so a slow reader keeps no file from being deleted; what is
deleted before it comes is a gap to it. Nothing here changes a topic: any thread may call it.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lithify.errors import InvalidInput
from lithify.positions import POSITION_MAX
from lithify.topics.messages.message import Message, read_entry
from lithify.topics.subscriptions.entry_flags import message_count

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lithify.log.segments.frame import LogEntry
    from lithify.topics.topic import Topic

    Row = dict[str, Any]

__all__ = [
    "ReadStart",
    "bytes_or_text",
    "bytes_or_text_in",
    "place_of",
    "place_of_last",
    "read_rows",
    "row_of",
]

ROWS_BYTES_MAX = 2**20
ROW_BYTES = 256
"""What a row takes beside its key and its value, about."""


@dataclass(frozen=True, slots=True)
class ReadStart:
    """The first entry to read, and how many of its messages, and those after it, to leave out."""

    position: int = 0
    skip: int = 0


def place_of(text: str) -> ReadStart:
    """The place that LEDGER:ENTRY names."""
    parts = text.split(":")
    if len(parts) != 2 or not all(part.isdecimal() and part.isascii() for part in parts):
        raise InvalidInput(f"message id {text!r} must be LEDGER:ENTRY")
    ledger, entry = map(int, parts)
    if ledger > POSITION_MAX >> 32 or entry >= 2**32:
        raise InvalidInput(f"there is no message {text}")
    return ReadStart(ledger << 32 | entry)


def place_of_last(topic: Topic, count: int) -> ReadStart:
    """Where to begin so that the last `count` messages are read, or all if there are fewer."""
    if count <= 0:
        return ReadStart(topic.last_position + 1)
    first = 0
    with topic.log.snapshot("tail") as snapshot:
        for entry in snapshot.read_backward():
            first = entry.position
            count -= message_count(entry)
            if count <= 0:
                return ReadStart(first, -count)
    return ReadStart(first)


def read_rows(
    topic: Topic,
    place: ReadStart,
    *,
    through: int = POSITION_MAX,
    limit: int | None = None,
    bytes_max: int = ROWS_BYTES_MAX,
) -> tuple[list[Row], ReadStart]:
    """(rows, where to go on): at most `limit` messages up to position `through`.

    Whole entries are read, so `bytes_max` may be exceeded by one. There is nothing more for now
    if there are no rows.
    """
    rows: list[Row] = []
    size_bytes, skip, at = 0, place.skip, place.position
    limit = POSITION_MAX if limit is None else limit
    with topic.log.snapshot("tail") as snapshot:
        for entry in snapshot.read(place.position):
            if entry.position > through or size_bytes >= bytes_max or len(rows) >= limit:
                break
            for row in _rows_of(entry, topic.name.partition):
                if skip:
                    skip -= 1
                elif len(rows) < limit:
                    rows.append(row)
                    size_bytes += ROW_BYTES + len(row.get("value") or row.get("value_base64") or "")
            at = entry.position + 1
    return rows, ReadStart(at, skip)


def _rows_of(entry: LogEntry, partition: int) -> Iterator[Row]:
    for message in read_entry(entry, partition):
        yield {"id": str(message.id), "error": message.error} if message.error else row_of(message)


def row_of(message: Message) -> Row:
    """A message as a row."""
    return {
        "id": str(message.id),
        "publish_time_ms": message.publish_time_ms,
        "event_time_ms": message.event_time_ms,
        "producer": message.producer,
        "sequence_id": message.sequence_id,
        "properties": dict(message.properties),
        **bytes_or_text("key", message.key),
        **bytes_or_text("value", message.value),
    }


def bytes_or_text(name: str, data: bytes | None) -> dict[str, str | None]:
    """`name` has text, or nothing; what is no UTF-8 is under `name_base64` instead."""
    try:
        return {name: None if data is None else data.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(data or b"").decode("ascii")}


def bytes_or_text_in(row: Row, name: str) -> bytes | None:
    """The other way round."""
    encoded = row.get(f"{name}_base64")
    if encoded is not None:
        return base64.b64decode(encoded)
    text = row.get(name)
    return None if text is None else str(text).encode()
