"""A topic as a Spark stream: `spark.readStream.format("lithify").load(…)`.

An offset has the read position of each log of the topic:

    {"persistent://public/default/orders": {"log": "5f…", "next": 12884901888, "through": -1}}

`next` is the first unread position. `log` is the log's id: a topic that was deleted and recreated
has a new one, and a checkpoint of the old one is refused. `through` is for `view` `compacted`: a
stream starts with the view up to the horizon at its start and continues with the log, like a
compacted reader, so it sees every deletion after its start. Spark stores offsets in its checkpoint.
They are valid in every generation, so a query resumes where it stopped.

1. A batch ends at the last durable entry. This process reads the active segment to its end and then
   syncs it, because a frame alone does not tell whether it is durable. So no delivered row can be
   lost in a crash.
2. The parts of a batch are those of a read within these bounds (`scan.py`).

The trigger `availableNow` ends with the data present at its start. Nothing is read while the file
of the active segment has not grown.

A stopped query retains nothing by itself. If retention has meanwhile dropped unread data, the query
fails with `StreamBehind`; a new query starts with what remains. With the option `subscription`, a
durable subscription of that name retains the log from the first position that no finished batch has
read, also while the query is stopped, until the subscription is deleted.

Runs in Spark's Python processes; only Spark calls it.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader
from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow

from lithify.errors import InvalidInput, LithifyError
from lithify.fs import LocalFileSystem
from lithify.log.read_only_log import find_manifest
from lithify.positions import NO_POSITION, unpack
from lithify.spark.scan import open_partition, plan_partition, read_part

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa
    from pyspark.sql.streaming.datasource import ReadLimit

    from lithify.fs import FileSystem
    from lithify.spark.place import Partition
    from lithify.spark.scan import ScanPart
    from lithify.spark.source import Query

__all__ = ["StreamBehind", "StreamReader"]

Offset = dict[str, dict[str, Any]]


class StreamBehind(LithifyError):
    """Data that a stream had not read was dropped from the log."""


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """One query; the instance of the planner lives as long as the query."""

    def __init__(self, query: Query, schema: pa.Schema) -> None:
        self._query = query
        self._schema = schema
        self._ends: dict[str, tuple[tuple[int, int], int]] = {}
        """By topic: ((id, size) of the active segment, last position of the log at that size)."""
        self._pins: list[ExitStack] = []
        self._last: Offset | None = None
        self._retained: Offset = {}

    def initialOffset(self) -> Offset:  # noqa: N802
        """The offset at which a new query starts."""
        fs = LocalFileSystem()
        first = {each.topic: self._first(fs, each) for each in self._query.place.partitions(fs)}
        self._retain(first)
        return first

    def _first(self, fs: FileSystem, partition: Partition) -> dict[str, Any]:
        manifest = find_manifest(fs, partition.directory)
        low, through = self._query.bounds.low, NO_POSITION
        if self._query.compacted:
            through = manifest.horizon
        else:
            low = max(low, manifest.dropped + 1)
        return {"log": manifest.log_id.hex(), "next": low, "through": through}

    def _retain(self, offset: Offset) -> None:
        """Retain the log from an offset on, if the query has a subscription."""
        if not self._query.subscription or offset == self._retained:
            return
        self._retained = offset
        place = self._query.place
        for partition in place.partitions(LocalFileSystem()):
            if partition.topic in offset:
                position = _log_from(offset[partition.topic])
                place.keep_from(self._query.subscription, partition, position)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Fix the end of the query at the current end of the topic."""
        fs = LocalFileSystem()
        here = self._query.place.partitions(fs)
        self._last = self._end_offset({each.topic: self._first(fs, each) for each in here})

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: ARG002, N802
        """The end of the next batch: all durable entries.

        Everything before `start` has been processed, so the subscription is moved to it here. Spark
        commits a batch only after planning the next one, so with `availableNow` a query of one
        batch would never move it in `commit`.
        """
        self._retain(start)
        if self._last is None:
            return self._end_offset(start)
        end = dict(self._last)
        for topic, log_offset in start.items():
            last = end.get(topic, log_offset)
            _check_log(topic, last["log"], log_offset)
            # The offset never decreases, even if entries were trimmed since.
            end[topic] = log_offset | {"next": max(log_offset["next"], last["next"])}
        return end

    def _end_offset(self, start: Offset) -> Offset:
        fs = LocalFileSystem()
        end = dict(start)
        for partition in self._query.place.partitions(fs):
            # The partition may be new since the start of the query.
            log_offset = start.get(partition.topic) or self._first(fs, partition)
            _check_log(partition.topic, _log_of(fs, partition), log_offset)
            last = min(self._durable(fs, partition), self._query.bounds.high)
            end[partition.topic] = log_offset | {"next": max(log_offset["next"], last + 1)}
        return end

    def _durable(self, fs: FileSystem, partition: Partition) -> int:
        """The last durable position of a log."""
        directory = partition.directory
        active = find_manifest(fs, directory).active
        # Take the size before reading, so that the next call notices later appends.
        now = active.id, fs.stat(f"{directory}/{active.name}").size
        seen = self._ends.get(partition.topic)
        if seen is not None and seen[0] == now:
            return seen[1]
        with ExitStack() as stack:
            snapshot = open_partition(stack, fs, partition)
            with fs.open_read(f"{directory}/{snapshot.manifest.active.name}") as file:
                file.fdatasync()
            last = snapshot.last_position
        self._ends[partition.topic] = now, last
        return last

    def partitions(self, start: Offset, end: Offset) -> Sequence[ScanPart]:
        """The parts of a batch; their files are pinned until it is committed."""
        fs, query = LocalFileSystem(), self._query
        parts: list[ScanPart] = []
        with ExitStack() as stack:
            for partition in query.place.partitions(fs):
                log_offset = end.get(partition.topic)
                if log_offset is None:
                    continue
                _check_log(partition.topic, _log_of(fs, partition), log_offset)
                start_offset = start.get(partition.topic)
                low = query.bounds.low if start_offset is None else start_offset["next"]
                if low >= log_offset["next"]:
                    continue
                snapshot = open_partition(stack, fs, partition)
                if start_offset is not None:
                    _check_head(partition.topic, snapshot.manifest.dropped, start_offset)
                parts += plan_partition(
                    fs,
                    partition,
                    snapshot,
                    compacted=query.compacted,
                    through=log_offset["through"],
                    bounds=replace(query.bounds, low=low, high=log_offset["next"] - 1),
                )
            self._pins.append(stack.pop_all())
        return parts

    def commit(self, end: Offset) -> None:  # noqa: ARG002
        """Release the pins of finished batches; the newest batch may still be running."""
        while len(self._pins) > 1:
            self._pins.pop(0).close()

    def stop(self) -> None:
        """Release all pins: the query has ended."""
        while self._pins:
            self._pins.pop().close()

    def read(self, partition: ScanPart) -> Iterator[pa.RecordBatch]:  # type: ignore[override]
        """Read one part."""
        return read_part(partition, self._schema)


def _log_of(fs: FileSystem, partition: Partition) -> str:
    return find_manifest(fs, partition.directory).log_id.hex()


def _check_log(topic: str, log: str, log_offset: dict[str, Any]) -> None:
    if log != log_offset["log"]:
        raise InvalidInput(
            f"topic {topic} was deleted and recreated since the checkpoint was written: "
            "start with a new checkpoint"
        )


def _log_from(log_offset: dict[str, Any]) -> int:
    """The first unread position in the log, as opposed to the view."""
    return max(int(log_offset["next"]), int(log_offset["through"]) + 1)


def _check_head(topic: str, dropped: int, start_offset: dict[str, Any]) -> None:
    first = _log_from(start_offset)
    if dropped >= first:
        (ledger, entry), (last_ledger, last_entry) = unpack(first), unpack(dropped)
        raise StreamBehind(
            f"topic {topic} has dropped {last_ledger}:{last_entry} and all before it, the stream "
            f"must resume at {ledger}:{entry}: start with a new checkpoint, or retain the log with "
            "the option 'subscription'"
        )
