"""Appends the rows of a DataFrame to a topic: `df.write.format("lithify").mode("append").save(…)`.

| column | type | |
|---|---|---|
| `key` | binary or string | optional; null is no key |
| `value` | binary or string | null is a tombstone |
| `properties` | map of strings | optional |
| `event_time` | timestamp | optional; null is none |

1. Each task writes its rows to its own file in the staging directory (option `staging`, by default
   the machine's directory for temporary files). The name is unique per attempt, so a task that
   fails or runs twice leaves a file but no message.
2. When all tasks are done, the driver reads the files of the successful attempts, in the order of
   the DataFrame's partitions, and appends their rows: over HTTP if the topic was named by its
   node's address, otherwise directly to the data directory, which no other process may have open
   (`LogLocked` names the process). The driver is one producer of each partition of the topic. The
   hash of the key selects the partition; messages without a key are distributed round-robin.
3. All files of the job are deleted, also those of failed attempts.

Messages are durable when `save` returns. A failed append raises `WriteStopped` with the number of
messages in the topic: what was appended before remains, in order. On a cluster `staging` must be a
directory that all machines share.

A staged file is a sequence of (size (8, little-endian) | Arrow stream of one record batch).

Runs in Spark's Python processes; only Spark calls it.
"""

from __future__ import annotations

import io
import itertools
import json
import os
import tempfile
import uuid
from base64 import b64encode
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from lithify.clock import SystemClock
from lithify.errors import InvalidInput, LithifyError
from lithify.events import ignore_events
from lithify.fs import LocalFileSystem
from lithify.spark.place import NodeRefused, ask_node
from lithify.topics.messages.message import new_entry
from lithify.topics.subscriptions.key_shared_hash import key_hash
from lithify.topics.topics import Topics, TopicSettings

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pyspark.sql.types import StructType

    from lithify.spark.place import TopicPlace
    from lithify.topics.definitions.topic_names import TopicName

__all__ = ["DataFrameWriter", "WriteStopped"]

REQUEST_BYTES = 3 << 20
"""Bytes of keys and values per request. Base64 adds a third, and a node accepts 10 MiB."""
REQUEST_MESSAGES = 5000

_TYPES = {
    "key": ("binary", "string"),
    "value": ("binary", "string"),
    "properties": ("map<string,string>",),
    "event_time": ("timestamp",),
}


class WriteStopped(LithifyError):
    """An append failed; only a part of the rows is in the topic."""


@dataclass(frozen=True)
class Staged(WriterCommitMessage):
    """The staged file of a task."""

    path: str


@dataclass(frozen=True, slots=True)
class MessageRow:
    """A message to append."""

    key: str | bytes | None
    value: bytes | None
    properties: dict[str, str]
    event_time_ms: int

    @property
    def key_bytes(self) -> bytes | None:
        """The bytes of the key, which are hashed and compared."""
        return self.key.encode() if isinstance(self.key, str) else self.key


class DataFrameWriter(DataSourceArrowWriter):
    """One write job; created on the driver and pickled to its tasks."""

    def __init__(self, place: TopicPlace, schema: StructType, staging: str) -> None:
        if place.name is None:
            raise InvalidInput(f"{place.directory} is not in a data directory: it can only be read")
        for field in schema.fields:
            kind = field.dataType.simpleString()
            if kind not in _TYPES.get(field.name, ()):
                accepted = ", ".join(f"{name} {kinds[0]}" for name, kinds in _TYPES.items())
                what = f"{field.name} {kind}"
                raise InvalidInput(f"a topic accepts no column {what!r}; it accepts: {accepted}")
        if "value" not in schema.names:
            raise InvalidInput("there is no column 'value'")
        self._place = place
        self._staging = staging or tempfile.gettempdir()
        if not LocalFileSystem().exists(self._staging):
            raise InvalidInput(
                f"the directory {self._staging!r} of option 'staging' does not exist"
            )
        self._job = f"lithify-{uuid.uuid4().hex}"

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        """Step 1: stage the rows of a task."""
        fs = LocalFileSystem()
        path = f"{self._staging}/{self._job}-{uuid.uuid4().hex}.staged"
        with fs.open_append(path, exclusive=True) as file:
            for batch in iterator:
                buffer = io.BytesIO()
                with pa.ipc.new_stream(buffer, batch.schema) as stream:
                    stream.write_batch(batch)
                data = buffer.getbuffer()
                file.writev([len(data).to_bytes(8, "little"), data])
        return Staged(path)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Step 2: append the staged rows, then delete the files."""
        staged = [message.path for message in messages if isinstance(message, Staged)]
        rows = itertools.chain.from_iterable(map(_read_staged, staged))
        append = _append_over_http if self._place.node else _append_directly
        try:
            append(self._place, rows)
        finally:
            self._remove()

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:  # noqa: ARG002
        """Delete the files: a task failed permanently, and nothing is appended."""
        self._remove()

    def _remove(self) -> None:
        """Step 3: delete all files of the job."""
        fs = LocalFileSystem()
        for name in fs.list(self._staging):
            if name.startswith(self._job):
                fs.remove(f"{self._staging}/{name}")


def _read_staged(path: str) -> Iterator[list[MessageRow]]:
    """The rows of a staged file, one record batch at a time."""
    try:
        file = LocalFileSystem().open_read(path)
    except FileNotFoundError:
        reason = "the option 'staging' must name a directory that all machines share"
        raise InvalidInput(f"staged file {path} of a task does not exist: {reason}") from None
    with file:
        at = 0
        while head := file.pread(8, at):
            size = int.from_bytes(head, "little")
            with pa.ipc.open_stream(file.pread(size, at + 8)) as stream:
                for batch in stream:
                    yield _rows_of(batch)
            at += 8 + size


def _rows_of(batch: pa.RecordBatch) -> list[MessageRow]:
    none = [None] * batch.num_rows
    columns: dict[str, list[Any]] = {}
    for name in _TYPES:
        column = batch.column(name) if name in batch.schema.names else None
        if column is not None and name == "event_time":
            column = column.cast(pa.timestamp("ms", column.type.tz), safe=False).cast(pa.int64())
        columns[name] = none if column is None else column.to_pylist()
    return [
        MessageRow(
            key,
            value.encode() if isinstance(value, str) else value,
            dict(properties or ()),
            event_time_ms or 0,
        )
        for key, value, properties, event_time_ms in zip(
            *(columns[name] for name in _TYPES), strict=True
        )
    ]


def _append_directly(place: TopicPlace, rows: Iterable[list[MessageRow]]) -> None:
    clock = SystemClock()
    topics = Topics(
        LocalFileSystem(),
        place.data,
        settings=TopicSettings(),
        clock=clock,
        events=ignore_events,
        owner=f"Spark writer, pid {os.getpid()}",
    )
    producer = f"spark-{uuid.uuid4().hex}"
    sequence, turn, done = itertools.count(), itertools.count(), 0
    assert place.name is not None
    try:
        count = topics.partitions(place.name)
        for batch in rows:
            bodies: dict[TopicName, list[bytes]] = {}
            now_ms = clock.now_ms()
            for row in batch:
                name = place.name
                if count:
                    key = row.key_bytes
                    chosen = next(turn) if key is None else key_hash(key)
                    name = name.partition_name(chosen % count)
                body = new_entry(
                    value=row.value,
                    key=row.key,
                    properties=row.properties,
                    event_time_ms=row.event_time_ms,
                    producer=producer,
                    sequence_id=next(sequence),
                    publish_time_ms=now_ms,
                )
                bodies.setdefault(name, []).append(body)
            for name, entries in bodies.items():
                size = len(entries)
                topic = topics.get(name, create=True)
                topic.writer.append_entries(
                    entries, times=[now_ms] * size, counts=[1] * size
                ).result()
                done += size
    except LithifyError as error:
        raise WriteStopped(
            f"{done} messages were written to {place.name}, then: {error}"
        ) from error
    finally:
        topics.close()


def _append_over_http(place: TopicPlace, rows: Iterable[list[MessageRow]]) -> None:
    done = 0
    try:
        for messages in itertools.chain.from_iterable(map(_requests, rows)):
            body = json.dumps({"messages": messages}).encode()
            answer = ask_node(place.produce_url, place.token, body)
            results = answer["messagePublishResults"]
            failed = [each["errorMsg"] for each in results if each["errorCode"]]
            done += len(results) - len(failed)
            if failed:
                raise NodeRefused(failed[0])
    except LithifyError as error:
        raise WriteStopped(
            f"{done} messages were written to {place.name}, then: {error}"
        ) from error


def _requests(rows: list[MessageRow]) -> Iterator[list[dict[str, Any]]]:
    """Group rows into requests within the limits."""
    request: list[dict[str, Any]] = []
    size = 0
    for row in rows:
        row_bytes = len(row.value or b"") + len(row.key_bytes or b"")
        if request and (size + row_bytes > REQUEST_BYTES or len(request) >= REQUEST_MESSAGES):
            yield request
            request, size = [], 0
        request.append(_message(row))
        size += row_bytes
    if request:
        yield request


def _message(row: MessageRow) -> dict[str, Any]:
    message: dict[str, Any] = {"properties": row.properties, "eventTime": row.event_time_ms}
    if isinstance(row.key, str):
        message["key"] = row.key
    elif row.key is not None:
        message["keyBase64"] = b64encode(row.key).decode()
    if row.value is not None:
        message["payloadBase64"] = b64encode(row.value).decode()
    return message
