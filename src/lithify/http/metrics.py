"""Metrics in the Prometheus text format, with Pulsar's names, so that its dashboards work.

The metrics of blobs and of the cluster, which Pulsar does not have, are in `blobs/metrics.py` and
`cluster/metrics.py`.

Each request collects the metrics of the open topics. A closed topic is counted, but not opened.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from copy import copy
from functools import partial
from typing import Any

from fastapi import APIRouter, Request, Response
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from lithify.blobs.store import BlobStore
from lithify.errors import LogClosed
from lithify.http.blobs.metrics import blob_metrics
from lithify.http.blobs.stores_and_blobs import BlobService
from lithify.http.cluster.access import ClusterAccess, in_cluster
from lithify.http.cluster.metrics import cluster_metrics, read_meters
from lithify.http.long_responses import InPieces, in_turns
from lithify.http.paths import BrokerDep
from lithify.pulsar.broker import Broker
from lithify.topics.definitions.topic_names import TopicName
from lithify.topics.disk_steps import DiskCall, Steps
from lithify.topics.ledger_sizes import storage_bytes
from lithify.topics.subscriptions.backlog import subscription_backlog
from lithify.topics.topic import Topic

__all__ = ["router"]

router = APIRouter(tags=["metrics"])

ROWS_A_STEP = 50
"""Samples, or topics, per step: less than 1 ms."""

_TOPIC = ("cluster", "namespace", "topic")
_SUBSCRIPTION = (*_TOPIC, "subscription")


def _history_to_read(store: BlobStore) -> Callable[[], object] | None:
    runs = store.compaction.runs
    return None if runs.record_is_cached else runs.record


class _Node:
    """Collects the metrics of a node, in steps: a node may have thousands of topics."""

    def __init__(
        self,
        broker: Broker,
        cluster: str,
        blobs: BlobService | None,
        meters: dict[str, Any] | None,
    ) -> None:
        """`meters` are those of the cluster that the process is a node of."""
        self._broker = broker
        self._cluster = cluster
        self._blobs = blobs
        self._meters = meters

    def text(self) -> Steps[list[bytes]]:
        """All families in the text format, in pieces."""
        pieces: list[bytes] = []
        topics = self._broker.topics
        opened = list(topics.opened().values())
        for made in (
            self._definitions(),
            self._topics(opened),
            self._subscriptions(opened),
            self._compaction(opened),
        ):
            for family in (yield from made):
                yield from _written(family, pieces)
        if self._blobs is not None:
            for store in self._blobs.stores.opened().values():
                yield DiskCall(store, partial(_history_to_read, store))
            for family in blob_metrics(self._blobs.stores, self._blobs.meters):
                yield from _written(family, pieces)
        if self._meters is not None:
            for family in cluster_metrics(self._meters):
                yield from _written(family, pieces)
        return pieces

    def _definitions(self) -> Steps[Sequence[Metric]]:
        topics = self._broker.topics
        defined = GaugeMetricFamily(
            "pulsar_topics_count", "Topics and partitions.", labels=("cluster", "namespace")
        )
        current = topics.definitions.current
        counts = dict.fromkeys(current.namespaces, 0)
        for number, (name, definition) in enumerate(current.topics.items(), 1):
            counts[_namespace_of(name)] += definition.partitions or 1
            if not number % ROWS_A_STEP:
                yield None
        for namespace, count in counts.items():
            defined.add_metric((self._cluster, namespace), count)
        unclaimed = GaugeMetricFamily(
            "lithify_unclaimed", "Directories without a definition.", labels=("kind",)
        )
        unclaimed.add_metric(("topic",), topics.unclaimed_count)
        if self._blobs is not None:
            unclaimed.add_metric(("store",), self._blobs.stores.unclaimed_count)
        return [defined, unclaimed]

    def _topics(self, opened: list[Topic]) -> Steps[Sequence[Metric]]:
        gauge, counter = GaugeMetricFamily, CounterMetricFamily
        families = (
            (gauge, "pulsar_producers_count", "Connected producers."),
            (gauge, "pulsar_consumers_count", "Connected consumers."),
            (gauge, "pulsar_subscriptions_count", "Subscriptions."),
            (counter, "pulsar_in_messages", "Messages written since the start."),
            (counter, "pulsar_in_bytes", "Their bytes."),
            (counter, "pulsar_out_messages", "Messages delivered since the start."),
            (counter, "pulsar_out_bytes", "Their bytes."),
            (gauge, "pulsar_storage_size", "Bytes that the log's files take."),
            (gauge, "pulsar_storage_segments", "Segments of the log."),
        )
        made = [kind(name, text, labels=_TOPIC) for kind, name, text in families]
        for topic in opened:
            subscriptions = topic.subscriptions.values()
            values = (
                len(topic.producers.joined),
                sum(len(each.consumers) for each in subscriptions),
                len(subscriptions),
                topic.writer.messages_in,
                topic.writer.bytes_in,
                *topic.delivered(),
                storage_bytes(topic.log),
                len(topic.log.manifest.segments),
            )
            for family, value in zip(made, values, strict=True):
                family.add_metric(self._labels(topic), value)
            yield None
        return made

    def _subscriptions(self, opened: list[Topic]) -> Steps[Sequence[Metric]]:
        gauge, counter = GaugeMetricFamily, CounterMetricFamily
        families = (
            (gauge, "pulsar_subscription_back_log", "Entries that are not acknowledged."),
            (gauge, "pulsar_subscription_unacked_messages", "Messages that consumers hold."),
            (gauge, "pulsar_subscription_consumers_count", "Connected consumers."),
            (counter, "pulsar_subscription_out_messages", "Messages delivered since the start."),
        )
        made = [kind(name, text, labels=_SUBSCRIPTION) for kind, name, text in families]
        for topic in opened:
            for each in list(topic.subscriptions.values()):
                try:
                    behind, _ = yield from subscription_backlog(topic.log, topic.reader, each)
                except LogClosed:
                    # The topic was closed in the meantime.
                    break
                values = (
                    behind,
                    sum(consumer.unacked_messages for consumer in each.consumers),
                    len(each.consumers),
                    each.delivered_messages,
                )
                for family, value in zip(made, values, strict=True):
                    family.add_metric((*self._labels(topic), each.name), value)
                yield None
        return made

    def _compaction(self, opened: list[Topic]) -> Steps[Sequence[Metric]]:
        """The metrics of compaction, for topics that were compacted."""
        gauge, counter = GaugeMetricFamily, CounterMetricFamily
        families = (
            (counter, "pulsar_compaction_removed_event_count", "Messages dropped."),
            (counter, "pulsar_compaction_succeed_count", "Runs that were published."),
            (counter, "pulsar_compaction_failed_count", "Runs that failed or were cancelled."),
            (counter, "pulsar_compaction_duration_time_in_mills", "Their duration."),
            (gauge, "pulsar_compaction_read_throughput", "Bytes per second that were read."),
            (gauge, "pulsar_compaction_write_throughput", "Bytes per second that were kept."),
            (gauge, "pulsar_compaction_compacted_entries_count", "Entries of the view."),
            (gauge, "pulsar_compaction_compacted_entries_size", "Their bytes."),
        )
        made = [kind(name, text, labels=_TOPIC) for kind, name, text in families]
        for topic in opened:
            record = yield from topic.compaction.reading_record()
            if not record.succeeded + record.failed:
                continue
            view = topic.log.manifest.view or ()
            seconds = record.duration_ms / 1000 or 1.0
            values = (
                record.removed,
                record.succeeded,
                record.failed,
                record.duration_ms,
                record.read_bytes / seconds,
                record.written_bytes / seconds,
                sum(ref.live_entries for ref in view),
                sum(ref.live_bytes for ref in view),
            )
            for family, value in zip(made, values, strict=True):
                family.add_metric(self._labels(topic), value)
            yield None
        return made

    def _labels(self, topic: Topic) -> tuple[str, ...]:
        return self._cluster, str(topic.name.namespace), str(topic.name)


def _namespace_of(topic: str) -> str:
    return str(TopicName.parse(topic).namespace)


def _written(family: Metric, pieces: list[bytes]) -> Steps[None]:
    """Append the text of a family to `pieces`: its description, then its samples, in steps.

    Written samples are deleted at once: deleting all of them together would be a long step.
    """
    described: list[bytes] = []
    left = family.samples[::-1]
    family.samples.clear()
    part = copy(family)
    while left or not described:
        part.samples = left[: -ROWS_A_STEP - 1 : -1]
        del left[-ROWS_A_STEP:]
        lines = generate_latest(_Family(part)).splitlines(keepends=True)
        if described:
            lines = [line for line in lines if line not in described]
        else:
            described = [line for line in lines if line.startswith(b"#")]
        pieces.append(b"".join(lines))
        yield None


class _Family(Collector):
    """A registry with one family, for the text encoder of the library."""

    def __init__(self, family: Metric) -> None:
        self._family = family

    def collect(self) -> Iterator[Metric]:
        """The family."""
        yield self._family


@router.get("/metrics/", include_in_schema=False)
@router.get("/metrics")
async def metrics(request: Request, broker: BrokerDep) -> Response:
    """The metrics of the node, for Prometheus."""
    state = request.app.state
    member: ClusterAccess | None = state.member
    meters = None
    if member is not None:
        # Without them the others are still worth having.
        with suppress(LogClosed):
            meters = await in_cluster(member, partial(read_meters, member))
    text = await in_turns(_Node(broker, state.cluster, state.blobs, meters).text(), broker)
    return InPieces(text, media_type=CONTENT_TYPE_LATEST)
