"""Metrics of blobs: operations over HTTP with their durations, and the use of the stores.

    lithify_blobs_capacity_bytes{store}               fixed at creation
    lithify_blobs_used_bytes{store}                   size of its segments, live or dead data
    lithify_blobs_valid_bytes{store}                  in the last requested statistics
    lithify_blobs_compaction_runs_total{store,result} done or failed, within the history
    lithify_blobs_compaction_reclaimed_bytes{store}   in the last run
    lithify_blobs_operation_seconds{store,operation}  a histogram of successful operations
    lithify_blobs_replica_lag_entries{store,replica}  unread entries of the replica's log
    lithify_blobs_replica_pulled_bytes_total{…}       contents read from the replica
    lithify_blobs_replica_errors_total{…}             failed reads of the replica

An operation is put (until the blob is durable, including the upload), get (until the first piece
was read), head, delete, ttl or undelete. Stores that are not open are not opened for metrics.

`BlobMeters` belongs to the event loop's thread. Called by the routes of blobs and by
`http/metrics.py`.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client.core import Metric

    from lithify.blobs.stores import BlobStores

__all__ = ["BlobMeters", "blob_metrics"]

BOUNDS_S = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)


class BlobMeters:
    """Counts and durations of operations, by store and operation."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, str], list[int]] = {}
        self._sums_s: dict[tuple[str, str], float] = {}
        self.valid_bytes: dict[str, int] = {}
        """Valid bytes by store, in its last statistics."""

    def add(self, store: str, operation: str, took_s: float) -> None:
        """Record an operation."""
        key = store, operation
        counts = self._counts.get(key)
        if counts is None:
            counts = self._counts[key] = [0] * (len(BOUNDS_S) + 1)
            self._sums_s[key] = 0.0
        counts[bisect_left(BOUNDS_S, took_s)] += 1
        self._sums_s[key] += took_s

    def forget(self, store: str) -> None:
        """Remove a store that was deleted."""
        self.valid_bytes.pop(store, None)
        for key in [key for key in self._counts if key[0] == store]:
            del self._counts[key], self._sums_s[key]

    def collect(self) -> Metric:
        """The Prometheus histogram: each bucket includes those below it."""
        family = HistogramMetricFamily(
            "lithify_blobs_operation_seconds",
            "Duration of successful operations.",
            labels=("store", "operation"),
        )
        for key, counts in self._counts.items():
            buckets, below = [], 0
            for bound, count in zip((*map(str, BOUNDS_S), "+Inf"), counts, strict=True):
                below += count
                buckets.append((bound, float(below)))
            family.add_metric(key, buckets, self._sums_s[key])
        return family


def blob_metrics(stores: BlobStores, meters: BlobMeters) -> Iterator[Metric]:
    """All metric families."""
    gauge, of_store = GaugeMetricFamily, ("store",)
    capacity = gauge("lithify_blobs_capacity_bytes", "Capacity of a store.", labels=of_store)
    used = gauge("lithify_blobs_used_bytes", "Bytes of its segments.", labels=of_store)
    valid = gauge("lithify_blobs_valid_bytes", "By the last statistics.", labels=of_store)
    reclaimed = gauge(
        "lithify_blobs_compaction_reclaimed_bytes", "By the last run.", labels=of_store
    )
    runs = CounterMetricFamily(
        "lithify_blobs_compaction_runs", "Finished runs.", labels=("store", "result")
    )
    for name, store in stores.opened().items():
        capacity.add_metric((name,), store.shape.capacity_bytes)
        used.add_metric((name,), store.used_bytes)
        if name in meters.valid_bytes:
            valid.add_metric((name,), meters.valid_bytes[name])
        record = store.compaction.runs.record()
        if record.latest is not None:
            runs.add_metric((name, "done"), record.succeeded)
            runs.add_metric((name, "failed"), record.failed)
            reclaimed.add_metric((name,), record.latest.reclaimed_bytes)
    yield from (capacity, used, valid, reclaimed, runs, meters.collect())
    yield from _replica_metrics(stores)


def _replica_metrics(stores: BlobStores) -> Iterator[Metric]:
    of_replica = ("store", "replica")
    lag = GaugeMetricFamily(
        "lithify_blobs_replica_lag_entries",
        "Entries of a replica's log that are not read.",
        labels=of_replica,
    )
    pulled = CounterMetricFamily(
        "lithify_blobs_replica_pulled_bytes", "Contents from a replica.", labels=of_replica
    )
    errors = CounterMetricFamily(
        "lithify_blobs_replica_errors", "Failed reads of a replica.", labels=of_replica
    )
    for name, store in stores.opened().items():
        for peer in store.replication.status():
            labels = name, peer.url
            if peer.behind >= 0:
                lag.add_metric(labels, peer.behind)
            pulled.add_metric(labels, peer.content_bytes)
            errors.add_metric(labels, peer.errors)
    yield from (lag, pulled, errors)
