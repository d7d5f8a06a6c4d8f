"""One stored entry as an HTTP response: the payload as body, the rest as X-Pulsar- headers.

The payload is decompressed but not decrypted. A batch is one body: a sequence of (size (4,
big-endian), metadata, value); X-Pulsar-num-batch-message has their number. Characters other than
printable ASCII are percent-encoded in headers.
"""

from __future__ import annotations

import string
from http import HTTPStatus
from typing import TYPE_CHECKING
from urllib.parse import quote

from fastapi.responses import Response

from lithify.http.error_responses import RequestRefused
from lithify.positions import PACKED_ENTRY_BITS, POSITION_MAX, pack, unpack
from lithify.topics.messages.message import decompress, parse_entry

if TYPE_CHECKING:
    from lithify.log.segments.frame import LogEntry
    from lithify.topics.subscriptions.cursor import Cursor
    from lithify.topics.topic import Topic

__all__ = ["PEEK_MAX", "message_response", "peek_response"]

PEEK_MAX = 10_000
"""Limit of the number in a peek: it reads all entries before that one."""

_IN_KEYS = string.ascii_letters + string.digits + "-_."
_IN_VALUES = "".join(c for c in string.punctuation if c != "%") + " "


def message_response(topic: Topic, ledger: int, entry: int) -> Response:
    """The entry at a position."""
    missing = RequestRefused(
        HTTPStatus.NOT_FOUND, f"topic {topic.name} has no entry {ledger}:{entry}"
    )
    if not 0 <= entry < 2**PACKED_ENTRY_BITS or not 0 <= ledger <= POSITION_MAX >> 32:
        raise missing
    position = pack(ledger, entry)
    with topic.log.snapshot("peek") as snapshot:
        found = next(snapshot.read(position, limit=1), None)
    if found is None or found.position != position:
        raise missing
    return _response(found)


def peek_response(topic: Topic, cursor: Cursor, number: int) -> Response:
    """The entry with number `number`, from 1, among those that are not acknowledged."""
    if not 1 <= number <= PEEK_MAX:
        raise RequestRefused(
            HTTPStatus.PRECONDITION_FAILED, f"message {number}: must be 1 to {PEEK_MAX}"
        )
    with topic.log.snapshot("peek") as snapshot:
        for entry in snapshot.read(cursor.mark_delete + 1):
            number -= not cursor.is_acked(entry.position)
            if not number:
                return _response(entry)
    raise RequestRefused(HTTPStatus.NOT_FOUND, "there are fewer messages")


def _response(entry: LogEntry) -> Response:
    metadata, payload = parse_entry(entry.body)
    ledger, number = unpack(entry.position)
    headers = {
        "X-Pulsar-Message-ID": f"{ledger}:{number}",
        "X-Pulsar-publish-time": str(metadata.publish_time),
        "X-Pulsar-producer-name": quote(metadata.producer_name, _IN_VALUES),
        "X-Pulsar-sequence-id": str(metadata.sequence_id),
    }
    if metadata.HasField("num_messages_in_batch"):
        headers["X-Pulsar-num-batch-message"] = str(metadata.num_messages_in_batch)
    if metadata.HasField("partition_key"):
        headers["X-Pulsar-partition-key"] = quote(metadata.partition_key, _IN_VALUES)
    if metadata.HasField("event_time"):
        headers["X-Pulsar-event-time"] = str(metadata.event_time)
    if metadata.null_value:
        headers["X-Pulsar-null-value"] = "true"
    for pair in metadata.properties:
        name = f"X-Pulsar-PROPERTY-{quote(pair.key, _IN_KEYS)}"
        headers[name] = quote(pair.value, _IN_VALUES)
    if not metadata.encryption_keys:
        payload = memoryview(decompress(metadata, payload))
    return Response(bytes(payload), headers=headers, media_type="application/octet-stream")
