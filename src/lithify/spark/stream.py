"""A topic as a stream of Spark: `spark.readStream.format("lithify").load(…)`.

An offset says of each log of the topic how far it was read:

    {"persistent://public/default/orders": {"log": "5f…", "next": 12884901888, "through": -1}}

`next` is the first position that was not read, `log` the log's own number: a topic that was deleted
and made again begins anew, and a checkpoint of the old one is refused. `through` is for `view`
`compacted`: a stream begins with the view as far as it reached at its start and goes on with the
log, as a compacted reader does, so that it sees every delete after its start. Spark keeps offsets
in its checkpoint; they mean the same in every generation, so a query goes on where it stopped.

1. The end of a batch is the last entry that is durable: the active segment is read through and
   then synced by this process, because a frame alone does not say whether it was. Nothing is
   handed out that a crash may take back.
2. The parts of a batch are those of a read with these bounds (`scan.py`).

A trigger `availableNow` ends with what was there when it began. While the file of the active
segment has not grown, nothing is read.

A query that has stopped holds nothing by itself. If retention has dropped meanwhile what it had not
read, `StreamBehind` says so; a new query begins with what there is. With an option `subscription` a
durable subscription of that name holds the log from what no finished batch has read on, whether the
query runs or not, until the subscription is deleted.

Runs in Spark's Python processes; nothing but Spark calls it.
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
    """What a stream had not read was dropped from the log."""


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """One query; the planner's lives as long as it runs."""

    def __init__(self, query: Query, schema: pa.Schema) -> None:
        self._query = query
        self._schema = schema
        self._ends: dict[str, tuple[tuple[int, int], int]] = {}
        """Of each log what its active segment was and how large, and where it ended then."""
        self._pins: list[ExitStack] = []
        self._last: Offset | None = None
        self._kept: Offset = {}

    def initialOffset(self) -> Offset:  # noqa: N802
        """Where a new query begins."""
        fs = LocalFileSystem()
        first = {each.topic: self._first(fs, each) for each in self._query.place.partitions(fs)}
        self._keep(first)
        return first

    def _first(self, fs: FileSystem, partition: Partition) -> dict[str, Any]:
        manifest = find_manifest(fs, partition.directory)
        low, through = self._query.bounds.low, NO_POSITION
        if self._query.compacted:
            through = manifest.horizon
        else:
            low = max(low, manifest.dropped + 1)
        return {"log": manifest.log_id.hex(), "next": low, "through": through}

    def _keep(self, offset: Offset) -> None:
        """Let the log be held from here on."""
        if not self._query.subscription or offset == self._kept:
            return
        self._kept = offset
        place = self._query.place
        for partition in place.partitions(LocalFileSystem()):
            if partition.topic in offset:
                position = _log_from(offset[partition.topic])
                place.keep_from(self._query.subscription, partition, position)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """The query ends with what is there now."""
        fs = LocalFileSystem()
        here = self._query.place.partitions(fs)
        self._last = self._ended({each.topic: self._first(fs, each) for each in here})

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: ARG002, N802
        """Where the next batch ends: with all there is.

        All before `start` was taken in. Spark commits a batch only when it has planned the next
        one, so a query that ends with its first, as with `availableNow`, would never let go.
        """
        self._keep(start)
        if self._last is None:
            return self._ended(start)
        end = dict(self._last)
        for topic, said in start.items():
            last = end.get(topic, said)
            _check_log(topic, last["log"], said)
            # What was read already stays read, whatever has been trimmed since.
            end[topic] = said | {"next": max(said["next"], last["next"])}
        return end

    def _ended(self, start: Offset) -> Offset:
        fs = LocalFileSystem()
        end = dict(start)
        for partition in self._query.place.partitions(fs):
            # A partition may have been added since the query began.
            said = start.get(partition.topic) or self._first(fs, partition)
            _check_log(partition.topic, _log_of(fs, partition), said)
            last = min(self._durable(fs, partition), self._query.bounds.high)
            end[partition.topic] = said | {"next": max(said["next"], last + 1)}
        return end

    def _durable(self, fs: FileSystem, partition: Partition) -> int:
        """The last position of a log, which is durable."""
        directory = partition.directory
        active = find_manifest(fs, directory).active
        # Its size before it is read: what comes after that is noticed the next time.
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
        """The parts of a batch; their files stay until it is committed."""
        fs, query = LocalFileSystem(), self._query
        parts: list[ScanPart] = []
        with ExitStack() as stack:
            for partition in query.place.partitions(fs):
                said = end.get(partition.topic)
                if said is None:
                    continue
                _check_log(partition.topic, _log_of(fs, partition), said)
                begun = start.get(partition.topic)
                low = query.bounds.low if begun is None else begun["next"]
                if low >= said["next"]:
                    continue
                snapshot = open_partition(stack, fs, partition)
                if begun is not None:
                    _check_head(partition.topic, snapshot.manifest.dropped, begun)
                parts += plan_partition(
                    fs,
                    partition,
                    snapshot,
                    compacted=query.compacted,
                    through=said["through"],
                    bounds=replace(query.bounds, low=low, high=said["next"] - 1),
                )
            self._pins.append(stack.pop_all())
        return parts

    def commit(self, end: Offset) -> None:  # noqa: ARG002
        """A batch is done: what it had pinned may go, but for the newest, which may be running."""
        while len(self._pins) > 1:
            self._pins.pop(0).close()

    def stop(self) -> None:
        """The query ended."""
        while self._pins:
            self._pins.pop().close()

    def read(self, partition: ScanPart) -> Iterator[pa.RecordBatch]:  # type: ignore[override]
        """One of the parts."""
        return read_part(partition, self._schema)


def _log_of(fs: FileSystem, partition: Partition) -> str:
    return find_manifest(fs, partition.directory).log_id.hex()


def _check_log(topic: str, log: str, said: dict[str, Any]) -> None:
    if log != said["log"]:
        raise InvalidInput(
            f"topic {topic} was deleted and made again since the checkpoint was written: "
            "begin with a new checkpoint"
        )


def _log_from(said: dict[str, Any]) -> int:
    """The first position that is still to be read from the log itself."""
    return max(int(said["next"]), int(said["through"]) + 1)


def _check_head(topic: str, dropped: int, begun: dict[str, Any]) -> None:
    first = _log_from(begun)
    if dropped >= first:
        (ledger, entry), (last_ledger, last_entry) = unpack(first), unpack(dropped)
        raise StreamBehind(
            f"topic {topic} has dropped {last_ledger}:{last_entry} and all before it, the stream "
            f"was to go on at {ledger}:{entry}: begin with a new checkpoint, or let a subscription "
            "hold the log"
        )
