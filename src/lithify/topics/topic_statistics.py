"""Statistics of a topic, under the names of Pulsar's statistics.

As in Pulsar, a backlog and the size of a ledger count entries, traffic counts messages. The counts
come from the manifest and the cursors, so the cost is proportional to the number of segments and of
shown ranges; see `subscriptions/backlog.py`.

As in Pulsar, the compacted view appears as a subscription `__compaction` without consumers. Its
backlog is the part of the log above the horizon.

Rates cover about the last minute (`statistics/rates.py`).

A topic may have thousands of clients. So statistics are collected in steps of `ROWS_A_STEP` rows,
and the topic can do other work in between: `topic_stats_steps` and `internal_stats_steps` yield
after each step (`topics/disk_steps.py`) and return the result. Rows may be of different moments.

Functions of an open topic that change nothing, called on the thread that owns it.
"""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import islice
from typing import TYPE_CHECKING, Any

from lithify.positions import unpack
from lithify.topics.definitions.topic_names import COMPACTION
from lithify.topics.disk_steps import run_here
from lithify.topics.ledger_sizes import ledgers_of, storage_bytes, stored_above
from lithify.topics.producers.producers import AccessMode
from lithify.topics.subscriptions.backlog import subscription_backlog
from lithify.topics.subscriptions.subscription import SubscriptionType

if TYPE_CHECKING:
    from lithify.compaction.reports.status import CompactionRecord
    from lithify.topics.client_info import ClientInfo
    from lithify.topics.disk_steps import Steps
    from lithify.topics.producers.producers import Producer
    from lithify.topics.subscriptions.subscription import Consumer, Subscription
    from lithify.topics.topic import Topic

__all__ = [
    "internal_stats_steps",
    "sum_stats",
    "topic_stats",
    "topic_stats_steps",
]

RANGES_SHOWN_MAX = 1000
ROWS_A_STEP = 50
"""About 1 ms."""

_TYPES = {
    SubscriptionType.EXCLUSIVE: "Exclusive",
    SubscriptionType.SHARED: "Shared",
    SubscriptionType.FAILOVER: "Failover",
    SubscriptionType.KEY_SHARED: "Key_Shared",
}
_ACCESS_MODES = {
    AccessMode.SHARED: "Shared",
    AccessMode.EXCLUSIVE: "Exclusive",
    AccessMode.WAIT_FOR_EXCLUSIVE: "WaitForExclusive",
    AccessMode.EXCLUSIVE_WITH_FENCING: "ExclusiveWithFencing",
}
_RATES = ("msgRateIn", "msgThroughputIn", "msgRateOut", "msgThroughputOut")
_SUMS = (
    *_RATES,
    "msgInCounter",
    "bytesInCounter",
    "msgOutCounter",
    "bytesOutCounter",
    "storageSize",
    "backlogSize",
    "waitingPublishers",
    "nonContiguousDeletedMessagesRanges",
)
_SUBSCRIPTION_SUMS = (
    "msgRateOut",
    "msgThroughputOut",
    "msgBacklog",
    "backlogSize",
    "unackedMessages",
    "msgOutCounter",
    "bytesOutCounter",
    "nonContiguousDeletedMessagesRanges",
)


# --- stats ------------------------------------------------------------------------------------


def topic_stats(topic: Topic) -> dict[str, Any]:
    """The statistics of an unpartitioned topic or of one partition."""
    return run_here(topic_stats_steps(topic))


def topic_stats_steps(topic: Topic) -> Steps[dict[str, Any]]:
    """`topic_stats` in steps."""
    subscriptions: dict[str, dict[str, Any]] = {}
    for name, subscription in sorted(topic.subscriptions.items()):
        subscriptions[name] = yield from _subscription_stats(topic, subscription)
        yield None
    publishers = []
    for number, producer in enumerate(list(topic.producers.joined.values()), 1):
        publishers.append(_publisher_stats(topic, producer))
        if not number % ROWS_A_STEP:
            yield None
    if topic.log.manifest.view is not None:
        subscriptions[COMPACTION] = _view_stats(topic)
    compaction = _compaction_stats((yield from topic.compaction.reading_record()))
    rows = subscriptions.values()
    messages, size_bytes = topic.writer.messages_in, topic.writer.bytes_in
    messages_out, bytes_out = topic.delivered()
    return {
        **dict(zip(_RATES, topic.rates(), strict=True)),
        "msgInCounter": messages,
        "bytesInCounter": size_bytes,
        "msgOutCounter": messages_out,
        "bytesOutCounter": bytes_out,
        "averageMsgSize": size_bytes / messages if messages else 0.0,
        "storageSize": storage_bytes(topic.log),
        "backlogSize": max((row["backlogSize"] for row in rows), default=0),
        "publishers": publishers,
        "waitingPublishers": len(topic.producers.waiting),
        "subscriptions": subscriptions,
        "replication": {},
        "topicEpoch": topic.producers.topic_epoch,
        "nonContiguousDeletedMessagesRanges": sum(
            row["nonContiguousDeletedMessagesRanges"] for row in rows
        ),
        "compaction": compaction,
    }


def _compaction_stats(record: CompactionRecord) -> dict[str, int]:
    return {
        "lastCompactionRemovedEventCount": record.removed_last,
        "lastCompactionSucceedTimestamp": record.succeeded_ms,
        "lastCompactionFailedTimestamp": record.failed_ms,
        "lastCompactionDurationTimeInMills": record.duration_last_ms,
    }


def _publisher_stats(topic: Topic, producer: Producer) -> dict[str, Any]:
    rate, throughput = topic.client_rate(producer)
    return {
        "producerName": producer.name,
        **_client(producer.client),
        "msgRateIn": rate,
        "msgThroughputIn": throughput,
        "averageMsgSize": producer.bytes / producer.messages if producer.messages else 0.0,
        "accessMode": _ACCESS_MODES[producer.mode],
        "msgInCounter": producer.messages,
        "bytesInCounter": producer.bytes,
    }


def _client(client: ClientInfo) -> dict[str, Any]:
    """Address, version and connection time of a client."""
    joined = datetime.fromtimestamp(client.joined_ms / 1000, UTC)
    return {
        "address": f"/{client.address}" if client.address else "",
        "connectedSince": joined.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "clientVersion": client.version,
    }


def _subscription_stats(topic: Topic, subscription: Subscription) -> Steps[dict[str, Any]]:
    consumers = []
    for number, consumer in enumerate(list(subscription.consumers), 1):
        consumers.append(_consumer_stats(topic, consumer))
        if not number % ROWS_A_STEP:
            yield None
    entries, size_bytes = yield from subscription_backlog(topic.log, topic.reader, subscription)
    active = subscription.active
    rate, throughput = topic.client_rate(subscription)
    return {
        "type": _TYPES[subscription.kind],
        "isDurable": subscription.durable,
        "msgRateOut": rate,
        "msgThroughputOut": throughput,
        "msgBacklog": entries,
        "backlogSize": size_bytes,
        "unackedMessages": sum(each["unackedMessages"] for each in consumers),
        "msgOutCounter": subscription.delivered_messages,
        "bytesOutCounter": subscription.delivered_bytes,
        "activeConsumerName": "" if active is None else active.name,
        "consumers": consumers,
        "nonContiguousDeletedMessagesRanges": subscription.cursor.acked_range_count,
        "isReplicated": False,
        "subscriptionProperties": _properties(topic, subscription),
        "readFailure": "" if (failure := subscription.read_failure) is None else failure.reason,
    }


def _properties(topic: Topic, subscription: Subscription) -> dict[str, str]:
    name = subscription.name
    # The subscription may have been deleted between two steps.
    exists = subscription.durable and name in topic.cursors
    return topic.cursors.properties(name) if exists else {}


def _view_stats(topic: Topic) -> dict[str, Any]:
    """The compacted view as a subscription, as Pulsar's tools expect."""
    entries, size_bytes = stored_above(topic.log, topic.log.manifest.horizon)
    return {
        "type": _TYPES[SubscriptionType.EXCLUSIVE],
        "isDurable": True,
        "msgRateOut": 0.0,
        "msgThroughputOut": 0.0,
        "msgBacklog": entries,
        "backlogSize": size_bytes,
        "unackedMessages": 0,
        "msgOutCounter": 0,
        "bytesOutCounter": 0,
        "activeConsumerName": "",
        "consumers": [],
        "nonContiguousDeletedMessagesRanges": 0,
        "isReplicated": False,
        "subscriptionProperties": {},
    }


def _consumer_stats(topic: Topic, consumer: Consumer) -> dict[str, Any]:
    rate, throughput = topic.client_rate(consumer)
    return {
        "consumerName": consumer.name,
        **_client(consumer.client),
        "msgRateOut": rate,
        "msgThroughputOut": throughput,
        "availablePermits": consumer.permits,
        "unackedMessages": consumer.unacked_messages,
        "msgOutCounter": consumer.delivered_messages,
        "bytesOutCounter": consumer.delivered_bytes,
        "keyHashRanges": [f"[{low}, {high}]" for low, high in consumer.slots],
    }


def sum_stats(parts: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """The statistics of a partitioned topic, from those of its partitions by name."""
    total: dict[str, Any] = {name: sum(part[name] for part in parts.values()) for name in _SUMS}
    messages = total["msgInCounter"]
    total["averageMsgSize"] = total["bytesInCounter"] / messages if messages else 0.0
    total["publishers"] = [each for part in parts.values() for each in part["publishers"]]
    subscriptions: dict[str, dict[str, Any]] = {}
    for part in parts.values():
        for name, row in part["subscriptions"].items():
            into = subscriptions.setdefault(name, {**row, "consumers": []} | _zeros())
            for field in _SUBSCRIPTION_SUMS:
                into[field] += row[field]
            into["consumers"] += row["consumers"]
    return total | {
        "subscriptions": subscriptions,
        "replication": {},
        "metadata": {"partitions": len(parts), "deleted": False},
        "partitions": parts,
    }


def _zeros() -> dict[str, float]:
    return dict.fromkeys(_SUBSCRIPTION_SUMS, 0)


# --- internal stats ---------------------------------------------------------------------------


def internal_stats_steps(topic: Topic) -> Steps[dict[str, Any]]:
    """The state of the log and the cursors of a topic, in steps."""
    cursors = {}
    for name, subscription in sorted(topic.subscriptions.items()):
        cursors[name] = _cursor_stats(topic, subscription)
        yield None
    ledgers = ledgers_of(topic.log)
    active, last, active_entries, active_bytes = ledgers[-1]
    confirmed = last if active_entries else active.first_position - 1
    view = topic.log.manifest.view
    compacted = _ledger(-1, -1, -1)
    if view is not None:
        number = unpack(topic.log.manifest.horizon)[0]
        entries = sum(ref.live_entries for ref in view)
        compacted = _ledger(number, entries, sum(ref.live_bytes for ref in view))
        cursors[COMPACTION] = _view_cursor(topic, number)
    return {
        "entriesAddedCounter": topic.writer.entries_in,
        "numberOfEntries": sum(entries for _, _, entries, _ in ledgers),
        "totalSize": sum(size_bytes for _, _, _, size_bytes in ledgers),
        "currentLedgerEntries": active_entries,
        "currentLedgerSize": active_bytes,
        "waitingCursorsCount": sum(_waits(topic, each) for each in topic.subscriptions.values()),
        "pendingAddEntriesCount": topic.log.next_position - 1 - confirmed,
        "lastConfirmedEntry": _text(confirmed),
        "state": "Terminated" if topic.writer.terminated else "LedgerOpened",
        "ledgers": [_ledger(ref.id, entries, size) for ref, _, entries, size in ledgers],
        "cursors": cursors,
        "properties": {},
        "schemaLedgers": [],
        "compactedLedger": compacted,
    }


def _ledger(number: int, entries: int, size_bytes: int) -> dict[str, Any]:
    return {
        "ledgerId": number,
        "entries": entries,
        "size": size_bytes,
        "offloaded": False,
        "underReplicated": False,
    }


def _waits(topic: Topic, subscription: Subscription) -> bool:
    """Does the subscription have consumers but nothing to deliver?"""
    return bool(subscription.consumers) and subscription.read_position > topic.log.last_position


def _view_cursor(topic: Topic, number: int) -> dict[str, Any]:
    """The compacted view as a cursor, as Pulsar's tools expect."""
    horizon = topic.log.manifest.horizon
    behind, _ = stored_above(topic.log, horizon)
    following = horizon + 1
    return {
        "markDeletePosition": _text(horizon),
        "readPosition": ":".join(map(str, unpack(following))),
        "waitingReadOp": False,
        "pendingReadOps": 0,
        "messagesConsumedCounter": 0,
        "cursorLedger": -1,
        "cursorLedgerLastEntry": -1,
        "individuallyDeletedMessages": "[]",
        "state": "Open",
        "active": False,
        "numberOfEntriesSinceFirstNotAckedMessage": behind,
        "totalNonContiguousDeletedMessagesRange": 0,
        "subscriptionHavePendingRead": False,
        "subscriptionHavePendingReplayRead": False,
        "properties": {"CompactedTopicLedger": number},
    }


def _cursor_stats(topic: Topic, subscription: Subscription) -> dict[str, Any]:
    cursor = subscription.cursor
    waits = _waits(topic, subscription)
    above, _ = stored_above(topic.log, cursor.mark_delete)
    behind, _ = stored_above(topic.log, subscription.read_position - 1)
    ranges = cursor.acked_range_count
    shown = [
        f"({_text(start - 1)}..{_text(stop - 1)}]"
        for start, stop in islice(cursor.acked_ranges(), RANGES_SHOWN_MAX)
    ]
    if ranges > len(shown):
        shown.append("…")
    return {
        "markDeletePosition": _text(cursor.mark_delete),
        "readPosition": ":".join(map(str, unpack(subscription.read_position))),
        "waitingReadOp": waits,
        "pendingReadOps": 0,
        "messagesConsumedCounter": subscription.delivered_messages,
        "cursorLedger": -1,
        "cursorLedgerLastEntry": -1,
        "individuallyDeletedMessages": f"[{','.join(shown)}]",
        "state": "Open",
        "active": bool(subscription.consumers),
        "numberOfEntriesSinceFirstNotAckedMessage": max(0, above - behind),
        "totalNonContiguousDeletedMessagesRange": ranges,
        "subscriptionHavePendingRead": waits,
        "subscriptionHavePendingReplayRead": False,
        "properties": {},
    }


def _text(position: int) -> str:
    """Format a position; the one before the first entry of ledger L is L:-1."""
    ledger, entry = unpack(position + 1)
    return f"{ledger}:{entry - 1}"
