"""Maps the message ids and times of SEEK and SUBSCRIBE to positions in a topic.

A SEEK has a message id or a publish time. The start of a new subscription is a message id, a time,
or one end of the topic. SUBSCRIBE may also have the hash ranges of a sticky consumer.

Pure, except for the search of a topic by time. Used by `consumer_commands.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lithify.errors import InvalidInput
from lithify.positions import PACKED_ENTRY_BITS, pack
from lithify.pulsar.wire import replies
from lithify.pulsar.wire import wire_pb2 as wire
from lithify.topics.subscriptions.key_shared_slots import RANGES_MAX

if TYPE_CHECKING:
    from lithify.topics.disk_steps import Steps
    from lithify.topics.topic import Topic

__all__ = ["position_of", "seek_position", "slots_of", "start_position"]

LATEST = 2**63 - 1


def position_of(message_id: wire.MessageIdData) -> int:
    """The position of an entry; -1 for "earliest" and for "before the first entry"."""
    ledger, entry = message_id.ledgerId, message_id.entryId
    if ledger >= LATEST:
        return -1 if ledger == replies.UNSIGNED - 1 else LATEST
    if entry >= LATEST:
        return pack(ledger, 0) - 1
    # No ledger has this number of entries, and a larger one would point into the next ledger.
    return pack(ledger, min(entry, 2**PACKED_ENTRY_BITS - 1))


def seek_position(request: wire.CommandSeek, topic: Topic, *, compacted: bool) -> Steps[int]:
    """The position to which a SEEK moves the cursor: by publish time or by message id."""
    if request.HasField("message_publish_time"):
        time_ms = min(request.message_publish_time, LATEST)
        return (yield from topic.reader.times.finding(time_ms, compacted=compacted))
    return _resolved(position_of(request.message_id), topic)


def start_position(request: wire.CommandSubscribe, topic: Topic, now_ms: int) -> Steps[int]:
    """The start position of a new subscription.

    The rollback duration has priority: clients send it together with a meaningless message id.
    """
    seconds = request.start_message_rollback_duration_sec
    if seconds > 0 and request.subscription not in topic.subscriptions:
        since_ms = max(0, now_ms - 1000 * seconds)
        return (yield from topic.reader.times.finding(since_ms, compacted=request.read_compacted))
    if request.HasField("start_message_id"):
        position = _resolved(position_of(request.start_message_id), topic)
        if position < topic.log.next_position:
            return position
    if request.initialPosition == wire.CommandSubscribe.Earliest:
        return 0
    return topic.log.next_position


def slots_of(request: wire.CommandSubscribe) -> list[tuple[int, int]]:
    """The hash ranges of a sticky consumer; empty for other consumers."""
    if request.keySharedMeta.keySharedMode != wire.KeySharedMeta.STICKY:
        return []
    ranges = request.keySharedMeta.hashRanges
    if len(ranges) > RANGES_MAX:
        # Check the count before any range is processed.
        raise InvalidInput(f"{len(ranges)} hash ranges are above the limit {RANGES_MAX}")
    return [(each.start, each.end) for each in ranges]


def _resolved(position: int, topic: Topic) -> int:
    """Clamp a start position to the log, so that future entries are not skipped."""
    return min(max(position, 0), topic.log.next_position)
