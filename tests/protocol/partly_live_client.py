"""What the clients of `test_partly_live_batches.py` do, in processes of their own."""

from __future__ import annotations

import json
from typing import Any

import pulsar

from tests.protocol.harness import RECEIVE_MS, Case, say

LEDGER = 5
"""Of all that the scripted broker sends."""


def receive(case: Case, count: int, how: str, with_indexes: bool) -> None:
    """Receive this many, say what they are, and acknowledge in some way."""
    consumer = case.earliest(is_read_compacted=True, batch_index_ack_enabled=with_indexes)
    messages = [consumer.receive(RECEIVE_MS) for _ in range(count)]
    say("received", json.dumps([described(message) for message in messages]))
    if how == "each":
        for message in messages:
            consumer.acknowledge(message)
    elif how == "last":
        consumer.acknowledge_cumulative(messages[-1])
    elif how == "last of the batch":
        consumer.acknowledge_cumulative(messages[-2])
    elif how == "first":
        consumer.acknowledge(messages[0])
    consumer.close()


def described(message: Any) -> list[Any]:
    found = message.message_id()
    return [found.entry_id(), found.batch_index(), message.data().decode()]


def seek(case: Case, index: int) -> None:
    """Receive everything, seek to an id of the batch, receive again."""
    consumer = case.earliest(is_read_compacted=True)
    for _ in range(4):
        consumer.receive(RECEIVE_MS)
    consumer.seek(pulsar.MessageId(-1, LEDGER, 0, index))
    found: list[list[Any]] = []
    while not found or found[-1][0] != 1:
        found.append(described(consumer.receive(RECEIVE_MS)))
    say("received", json.dumps(found))
