"""A message as JSON, in the output of commands and over HTTP.

    {"id": "3:17", "publish_time_ms": …, "event_time_ms": 0, "producer": "p", "sequence_id": 4,
     "properties": {}, "key": "k", "value": "text"}

Bytes that are not valid UTF-8 are in `key_base64` and `value_base64` instead. A missing key or
value is null.
"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lithify.topics.messages.message import Message

    Row = dict[str, Any]

__all__ = ["bytes_or_text", "bytes_or_text_in", "row_of"]


def row_of(message: Message) -> Row:
    """Encode a message as a row."""
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
    """{name: text or None}, or {name_base64: …} for bytes that are not valid UTF-8."""
    try:
        return {name: None if data is None else data.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(data or b"").decode("ascii")}


def bytes_or_text_in(row: Row, name: str) -> bytes | None:
    """The inverse of `bytes_or_text`."""
    encoded = row.get(f"{name}_base64")
    if encoded is not None:
        return base64.b64decode(encoded)
    text = row.get(name)
    return None if text is None else str(text).encode()
