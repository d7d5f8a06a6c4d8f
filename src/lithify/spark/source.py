"""Topics and tables as DataFrames: `spark.read.format("lithify").load(…)`, `readStream`, `write`.

    orders = spark.read.format("lithify").option("view", "compacted").load("data/topics/…/orders")
    orders.groupBy("key").count()

A path or an address `…/tables/TABLE` is a table: `tables/table_query.py`. The rest is about topics.

Spark finds the source without registration, by the package `pyspark_lithify`. `place.py` describes
paths and addresses, `arrow_rows.py` the columns. Options, case-insensitive:

| option | |
|---|---|
| `view` | `log`, all messages (the default), or `compacted`: the view, and the log above it |
| `columns` | the requested columns, separated by commas; all by default |
| `startPosition`, `stopPosition` | `LEDGER:ENTRY`, inclusive start and exclusive stop |
| `startTime`, `stopTime` | publish times in ISO 8601, UTC without a zone; exclusive stop |
| `subscription` | for a stream from a node's address: the subscription that retains unread data |
| `token` | for a node that requires one |
| `staging` | a directory, see `write.py` |

Spark pushes filters down to a Python source, but not the columns of a query. So name the columns,
with `columns` or a schema (`.schema("key binary, ledger bigint")`): other columns are not decoded.
Without values, only keys are copied. Ids and times alone come from the key index, if there is one.

Positions and times prune segments. They are options because pushed-down filters are unsafe for it:
Spark reuses the plan of one filter for every other query of the same DataFrame, such as
`frame.where(a).union(frame.where(b))`, and rows would be missing silently. All releases with
filters for Python sources, 4.1 to 4.3, do this: they keep the plan with the source, not the scan.
Neither planner nor task learns which query it works for, so the source cannot correct it. Therefore
this reader accepts no filters, whatever `spark.sql.python.filterPushdown.enabled` says.

The planner keeps its pins for `PLANNED_S`, or until Spark ends its process. A task has its own pin.

Runs in Spark's Python processes; only Spark calls it.
"""

from __future__ import annotations

import re
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader
from pyspark.sql.types import (
    BinaryType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructType,
    TimestampType,
)

from lithify.clock import SystemClock
from lithify.errors import InvalidInput
from lithify.fs import LocalFileSystem
from lithify.positions import pack
from lithify.spark.time_option import time_option_ms

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import pyarrow as pa
    from pyspark.sql.datasource import (
        DataSourceStreamReader,
        DataSourceWriter,
        InputPartition,
    )

    from lithify.spark.place import TopicPlace
    from lithify.spark.scan import Bounds, ScanPart
    from lithify.spark.tables.table_query import TableQuery

__all__ = ["LithifySource", "Query", "arrow_schema"]

SCHEMA = (
    StructType()
    .add("topic", StringType())
    .add("partition", IntegerType())
    .add("ledger", LongType())
    .add("entry", LongType())
    .add("batch_index", IntegerType())
    .add("key", BinaryType())
    .add("value", BinaryType())
    .add("properties", MapType(StringType(), StringType()))
    .add("publish_time", TimestampType())
    .add("event_time", TimestampType())
    .add("producer", StringType())
    .add("sequence_id", LongType())
)
_OPTIONS = {
    name.lower(): name
    for name in (
        "path",
        "view",
        "columns",
        "startPosition",
        "stopPosition",
        "startTime",
        "stopTime",
        "subscription",
        "token",
        "staging",
        "timestamp",
        "version",
        "prefix",
    )
}
_TABLES_ONLY = ("timestamp", "version", "prefix")
PLANNED_S = 600.0
_POSITION = re.compile(r"(\d{1,10}):(\d{1,10})")
_planned: list[tuple[float, ExitStack]] = []
"""(time, pins) of each query planned by this process, oldest first."""


@dataclass(frozen=True, slots=True)
class Query:
    """The options of a read, parsed."""

    place: TopicPlace
    compacted: bool
    bounds: Bounds
    subscription: str = ""
    """The subscription that retains the log for a stream."""

    @classmethod
    def of(cls, options: Mapping[str, str]) -> Query:
        """Parse the options; raises `InvalidInput` that names an invalid one."""
        # Imported here, so that listing the data sources does not load compiled code.
        from lithify.spark.scan import Bounds  # noqa: PLC0415

        view = options.get("view", "log")
        if view not in {"log", "compacted"}:
            raise InvalidInput(f"view {view!r} must be 'log' or 'compacted'")
        # Bounds are inclusive integers, stop options are exclusive.
        limits = {
            field: read(name, options[name.lower()]) - less
            for field, name, read, less in (
                ("low", "startPosition", _position, 0),
                ("high", "stopPosition", _position, 1),
                ("time_min_ms", "startTime", time_option_ms, 0),
                ("time_max_ms", "stopTime", time_option_ms, 1),
            )
            if name.lower() in options
        }
        place, subscription = place_of(options), options.get("subscription", "")
        if subscription and not place.node:
            raise InvalidInput(
                f"subscription {subscription!r} is kept by a node: load(http://NODE/persistent/…)"
            )
        return cls(place, view == "compacted", Bounds(**limits), subscription)


def place_of(options: Mapping[str, str]) -> TopicPlace:
    """The location of the topic in the options."""
    from lithify.spark.place import find_place  # noqa: PLC0415

    if not options.get("path"):
        raise InvalidInput("no topic path: use load(PATH) or save(PATH)")
    return find_place(LocalFileSystem(), options["path"], options.get("token", ""))


def _position(name: str, text: str) -> int:
    match = _POSITION.fullmatch(text.strip())
    if match is None:
        raise InvalidInput(f"{name} {text!r} must be LEDGER:ENTRY")
    return pack(int(match[1]), int(match[2]))


def arrow_schema(schema: StructType) -> pa.Schema:
    """The Arrow schema for a Spark schema, whose columns must be among `SCHEMA`."""
    _check_columns(schema, SCHEMA)
    return _to_arrow(schema)


def _to_arrow(schema: StructType) -> pa.Schema:
    from pyspark.sql.pandas.types import to_arrow_schema  # noqa: PLC0415

    return to_arrow_schema(schema, timezone="UTC")


def _check_columns(schema: StructType, whole: StructType) -> None:
    for field in schema.fields:
        kind = field.dataType.simpleString()
        if field.name not in whole.names or kind != whole[field.name].dataType.simpleString():
            raise _no_column(f"{field.name} {kind}", whole)


def _no_column(name: str, whole: StructType) -> InvalidInput:
    valid = ", ".join(f"{each.name} {each.dataType.simpleString()}" for each in whole.fields)
    return InvalidInput(f"there is no column {name!r}; there are: {valid}")


def is_table(path: str) -> bool:
    """Does a path or an address name a table, and no topic?"""
    parts = path.rstrip("/").split("/")
    return len(parts) > 2 and parts[-2] == "tables" and parts[-4:-3] != ["topics"]


class LithifySource(DataSource):
    """The data source `lithify`; see the module."""

    def __init__(self, options: Mapping[str, str]) -> None:
        given = {name.lower(): value for name, value in options.items()}
        unknown = sorted(given.keys() - _OPTIONS)
        if unknown:
            valid = ", ".join(_OPTIONS.values())
            raise InvalidInput(f"there is no option {unknown[0]!r}; there are: {valid}")
        self.options = given
        self.is_table = is_table(given.get("path", ""))
        only = [] if self.is_table else [name for name in _TABLES_ONLY if name in given]
        if only:
            raise InvalidInput(f"option {only[0]!r} is for tables: load(…/tables/TABLE)")

    @classmethod
    def name(cls) -> str:
        """The argument of `format`."""
        return "lithify"

    def schema(self) -> StructType:
        """The requested columns, in their order."""
        whole = SCHEMA
        if self.is_table:
            from lithify.spark.tables.arrow_columns import spark_schema  # noqa: PLC0415

            whole = spark_schema(self._table_query().moment().table)
        names = self.options.get("columns", "")
        requested = [name.strip() for name in names.split(",")] if names else whole.names
        for name in requested:
            if name not in whole.names:
                raise _no_column(name, whole)
        return StructType([whole[name] for name in requested])

    def _table_query(self) -> TableQuery:
        from lithify.spark.tables.table_query import TableQuery  # noqa: PLC0415

        return TableQuery.of(self.options)

    def reader(self, schema: StructType) -> DataSourceReader:
        """The reader of `spark.read`."""
        if self.is_table:
            return _TableReader(self._table_query(), schema)
        return _Reader(Query.of(self.options), arrow_schema(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """The reader of `spark.readStream`."""
        self._check_topic("read as a stream")
        from lithify.spark.stream import StreamReader  # noqa: PLC0415

        return StreamReader(Query.of(self.options), arrow_schema(schema))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:  # noqa: FBT001
        """The writer of `DataFrame.write`."""
        self._check_topic("written to")
        from lithify.spark.write import DataFrameWriter  # noqa: PLC0415

        if overwrite:
            raise InvalidInput('a topic can only be appended to: write.mode("append")')
        return DataFrameWriter(place_of(self.options), schema, self.options.get("staging", ""))

    def _check_topic(self, use: str) -> None:
        if self.is_table:
            raise InvalidInput(f"{self.options['path']} is a table: it cannot be {use}")


class _TableReader(DataSourceReader):
    """One query of a table."""

    def __init__(self, query: TableQuery, schema: StructType) -> None:
        self._query = query
        self._given = schema
        self._schema = _to_arrow(schema)

    def partitions(self) -> Sequence[InputPartition]:
        """The parts of all partitions of the table."""
        from lithify.spark.tables.arrow_columns import spark_schema  # noqa: PLC0415

        moment, parts = self._query.plan()
        _check_columns(self._given, spark_schema(moment.table))
        return parts

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one part."""
        from lithify.spark.tables.table_parts import TablePart, read_part  # noqa: PLC0415

        return read_part(partition, self._schema) if isinstance(partition, TablePart) else iter(())


class _Reader(DataSourceReader):
    """One batch query of a topic."""

    def __init__(self, query: Query, schema: pa.Schema) -> None:
        self._query = query
        self._schema = schema

    def partitions(self) -> Sequence[ScanPart]:
        """The parts of all partitions of the topic."""
        from lithify.spark.scan import open_partition, plan_partition  # noqa: PLC0415

        fs, query = LocalFileSystem(), self._query
        parts: list[ScanPart] = []
        with ExitStack() as stack:
            for partition in query.place.partitions(fs):
                snapshot = open_partition(stack, fs, partition)
                parts += plan_partition(
                    fs, partition, snapshot, compacted=query.compacted, bounds=query.bounds
                )
            _keep(stack.pop_all())
        return parts

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one part. Without parts Spark passes a placeholder, which has no rows."""
        from lithify.spark.scan import ScanPart, read_part  # noqa: PLC0415

        return read_part(partition, self._schema) if isinstance(partition, ScanPart) else iter(())


def _keep(stack: ExitStack) -> None:
    """Keep the pins of a plan, and release old ones."""
    now_s = SystemClock().monotonic_s()
    while _planned and _planned[0][0] < now_s - PLANNED_S:
        _planned.pop(0)[1].close()
    _planned.append((now_s, stack))
