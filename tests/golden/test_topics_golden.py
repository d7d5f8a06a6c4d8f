"""The bytes of a node's own files, version 1, as they were first written. They never change.

`python tests/golden/test_topics_golden.py` writes files that are missing and leaves the others
alone.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from lithify.blobs.definition import StoreDefinition
from lithify.clock import ManualClock
from lithify.events import ignore_events
from lithify.fs import MemoryFileSystem, read_file
from lithify.log.log import Log
from lithify.log.segments.frame import LogEntry
from lithify.positions import PACKED, pack
from lithify.topics.definitions.definitions import (
    Definitions,
    NamespaceDefinition,
    TopicDefinition,
)
from lithify.topics.definitions.definitions_file import DefinitionsFile
from lithify.topics.definitions.topic_names import Namespace, TopicName
from lithify.topics.directories.inventory import Inventory
from lithify.topics.messages.message import encode_entry
from lithify.topics.messages.message_pb2 import MessageMetadata
from lithify.topics.producers.deduplication import Deduplication, ProducerProgress
from lithify.topics.schemas.schemas import Schema, Schemas, SchemaType
from lithify.topics.subscriptions.cursor import Cursor
from lithify.topics.subscriptions.cursor_changes import (
    Acked,
    AckedBatch,
    AckedUpTo,
    Filled,
    Reset,
    change_from_bytes,
)
from lithify.topics.subscriptions.cursor_store import CursorStore

if TYPE_CHECKING:
    from collections.abc import Callable

    from lithify.topics.subscriptions.cursor_changes import CursorChange

HERE = Path(__file__).parent
CURSOR = HERE / "cursor_v1.bin"
RECORDS = HERE / "cursor_records_v1.txt"
DEFINITIONS = HERE / "definitions_v2.txt"
DEFINITIONS_V1 = HERE / "definitions_v1.txt"
INVENTORY = HERE / "inventory_v1.txt"
SCHEMAS = HERE / "schemas_v1.txt"
PRODUCERS = HERE / "producers_v1.txt"

CHANGES: list[CursorChange] = [
    Acked(pack(1, 2)),
    AckedUpTo(-1),
    AckedUpTo(pack(1, 0)),
    AckedBatch(pack(2, 7), 0b101, 10),
    AckedBatch(pack(2, 8), 0b11, 3, masked=0b10),
    Filled(pack(1, 3), pack(2, 0)),
    Reset(pack(1, 1)),
    Acked(2**63 - 1),
]
RECORD = Schema(
    SchemaType.JSON,
    b'{"type":"record","name":"Order","fields":[{"name":"id","type":"long"}]}',
    "orders",
    {"by": "ä"},
)
TEXT = Schema(SchemaType.STRING)


# --- cursors ------------------------------------------------------------------------------------


def golden_cursor() -> Cursor:
    """One range whole, one over positions that do not exist, and two batches."""
    cursor = Cursor(pack(1, 4))
    cursor.ack(pack(1, 6))
    cursor.ack(pack(1, 9))
    cursor.fill(pack(1, 10), pack(2, 0))
    cursor.ack(pack(2, 0))
    cursor.ack_batch(pack(2, 2), 0b1011, 4)
    cursor.ack_batch(2**63 - 1, 1 << 999, 1000)
    return cursor


def write_cursor(_: MemoryFileSystem) -> bytes:
    return golden_cursor().to_bytes()


def write_records(fs: MemoryFileSystem) -> bytes:
    """The segment of a store in which everything happens that can happen."""
    store = CursorStore.open(fs, "/cursors", clock=ManualClock(), events=ignore_events)
    store.create("billing", golden_cursor(), {"team": "ä"})
    store.create("gone", Cursor(-1), {})
    for change in CHANGES:
        store.ack("billing", change)
    store.delete("gone")
    store.close()
    # The log's own header has a random number in it: the frames are what is checked.
    log = Log.open(fs, "/cursors", kind="cursor", clock=ManualClock())
    with log.snapshot("test") as snapshot:
        lines = [b"%d %d %b" % (e.flags, e.tag, e.body.hex().encode()) for e in snapshot.read()]
    log.abandon()
    return b"\n".join(lines) + b"\n"


def golden_entries() -> list[LogEntry]:
    rows = [line.split(" ") for line in RECORDS.read_text().splitlines()]
    return [
        LogEntry(position, 0, bytes.fromhex(body), int(flags), int(tag))
        for position, (flags, tag, body) in enumerate(rows)
    ]


def test_version_1_of_a_cursor_is_still_written_and_read() -> None:
    data = CURSOR.read_bytes()
    assert golden_cursor().to_bytes() == data
    assert Cursor.from_bytes(data).to_bytes() == data
    assert list(Cursor.from_bytes(data).acked_ranges()) == list(golden_cursor().acked_ranges())


def test_version_1_of_cursor_records_is_still_written() -> None:
    assert write_records(MemoryFileSystem()) == RECORDS.read_bytes()


def test_version_1_of_cursor_records_is_still_read() -> None:
    fs = MemoryFileSystem()
    with Log.open(fs, "/cursors", kind="cursor", clock=ManualClock()) as log:
        for entry in golden_entries():
            log.append(entry.body, flags=entry.flags, tag=entry.tag)
    store = CursorStore.open(fs, "/cursors", clock=ManualClock(), events=ignore_events)
    assert store.names() == ["billing"]
    assert store.properties("billing") == {"team": "ä"}
    expected = golden_cursor()
    for change in CHANGES:
        change.apply(expected)
    assert store.get("billing").to_bytes() == expected.to_bytes()


def test_every_change_of_version_1_is_still_the_same() -> None:
    bodies = [entry for entry in golden_entries() if entry.flags >> 8 > 2]
    assert [change_from_bytes(each.flags >> 8, each.body) for each in bodies] == CHANGES


# --- lines --------------------------------------------------------------------------------------


def golden_definitions() -> Definitions:
    """Every kind of definition, with settings and without."""
    store = StoreDefinition("shop/eu-west", 2**20, 2**16, 1_700_000_000_002, {"policy": "stats"})
    return golden_definitions_v1().with_store("photos", store.row())


def golden_definitions_v1() -> Definitions:
    """The same without stores, which version 1 did not have."""
    shop = Namespace("shop", "eu-west")
    return (
        Definitions.initial()
        .with_tenant("shop", {"admins": ["ann"], "clusters": ["standalone"]})
        .with_namespace(shop, NamespaceDefinition({"retention_ms": 60_000}))
        .with_topic(TopicName(shop, "orders/ä"), TopicDefinition(4, 1_700_000_000_000))
        .with_topic(
            TopicName.parse("plain"), TopicDefinition(0, 1_700_000_000_001, {"deduplication": True})
        )
    )


def write_definitions(fs: MemoryFileSystem) -> bytes:
    DefinitionsFile(fs, "/data/definitions").change(lambda _: golden_definitions())
    return read_file(fs, "/data/definitions")


def write_inventory(fs: MemoryFileSystem) -> bytes:
    inventory = Inventory(fs, "/data/inventory", ignore_events)
    inventory.add([TopicName.parse("orders")])
    inventory.add([TopicName.parse("acme/shop/ä-partition-3"), TopicName.parse("old")])
    inventory.remove([TopicName.parse("old")])
    return read_file(fs, "/data/inventory")


def write_schemas(fs: MemoryFileSystem) -> bytes:
    schemas = Schemas(fs, "/data", clock=ManualClock())
    schemas.register(RECORD)
    schemas.delete()
    schemas.register(TEXT)
    return read_file(fs, "/data/schemas")


def open_producers(fs: MemoryFileSystem) -> tuple[Log, Deduplication]:
    log = Log.open(fs, "/data/log", kind="topic", clock=ManualClock(), rule=PACKED)
    return log, Deduplication(fs, "/data/producers", log, events=ignore_events)


def write_producers(fs: MemoryFileSystem) -> bytes:
    """One that is done with its messages, and one in the middle of a large one."""
    whole = MessageMetadata(producer_name="ä", sequence_id=17, publish_time=1)
    chunk = MessageMetadata(producer_name="large", sequence_id=5, publish_time=2)
    chunk.uuid, chunk.chunk_id, chunk.num_chunks_from_msg = "large-5", 1, 3
    log, _ = open_producers(fs)
    log.append_many([encode_entry(whole, b"x"), encode_entry(chunk, b"y")]).result()
    log.close()
    log, producers = open_producers(fs)
    producers.close()
    log.close()
    return read_file(fs, "/data/producers")


LINES: list[tuple[Path, Callable[[MemoryFileSystem], bytes]]] = [
    (DEFINITIONS, write_definitions),
    (INVENTORY, write_inventory),
    (SCHEMAS, write_schemas),
    (PRODUCERS, write_producers),
]


@pytest.mark.parametrize(("golden", "write"), LINES, ids=[path.stem for path, _ in LINES])
def test_these_files_are_still_written_as_they_were(
    golden: Path, write: Callable[[MemoryFileSystem], bytes]
) -> None:
    fs = MemoryFileSystem()
    fs.mkdir("/data")
    assert write(fs) == golden.read_bytes()


def test_every_version_of_definitions_is_still_read() -> None:
    fs = disk_with("/data/definitions", DEFINITIONS)
    assert DefinitionsFile(fs, "/data/definitions").current == golden_definitions()
    fs = disk_with("/data/definitions", DEFINITIONS_V1)
    assert DefinitionsFile(fs, "/data/definitions").current == golden_definitions_v1()


def test_version_1_of_the_inventory_is_still_read() -> None:
    fs = disk_with("/data/inventory", INVENTORY)
    names = Inventory(fs, "/data/inventory", ignore_events).names()
    assert names == [TopicName.parse("acme/shop/ä-partition-3"), TopicName.parse("orders")]


def test_version_1_of_schemas_is_still_read() -> None:
    schemas = Schemas(disk_with("/data/schemas", SCHEMAS), "/data", clock=ManualClock())
    first, deleted, second = schemas.get(0), schemas.get(1), schemas.latest()
    assert first is not None
    assert first.schema == RECORD
    assert deleted is None
    assert second is not None
    assert (second.version, second.schema) == (2, TEXT)


def test_version_1_of_producers_is_still_read() -> None:
    fs = disk_with("/data/producers", PRODUCERS)
    # The log has other entries at these positions: what is known comes from the snapshot.
    log = Log.open(fs, "/data/log", kind="topic", clock=ManualClock(), rule=PACKED)
    other = encode_entry(MessageMetadata(producer_name="z", sequence_id=0, publish_time=1), b"")
    log.append_many([other, other]).result()
    known = Deduplication(fs, "/data/producers", log, events=ignore_events)
    assert known.last_sequence_id("ä") == 17
    assert known.last_sequence_id("z") == -1
    chunk = MessageMetadata(producer_name="large", sequence_id=5, publish_time=2)
    chunk.uuid, chunk.chunk_id, chunk.num_chunks_from_msg = "large-5", 1, 3
    last = MessageMetadata.FromString(chunk.SerializeToString())
    last.chunk_id = 2
    bodies = [encode_entry(chunk, b"y"), encode_entry(last, b"z")]
    again, new = known.split_chunks("large", bodies)
    assert (again.is_new, new.is_new) == (False, True)
    assert new.progress == ProducerProgress(5)


def disk_with(path: str, golden: Path) -> MemoryFileSystem:
    fs = MemoryFileSystem()
    fs.mkdir("/data")
    with fs.open_append(path) as file:
        file.write(golden.read_bytes())
    return fs


def write_missing() -> None:
    for path, write in [(CURSOR, write_cursor), (RECORDS, write_records), *LINES]:
        fs = MemoryFileSystem()
        fs.mkdir("/data")
        if not path.exists():
            path.write_bytes(write(fs))


if __name__ == "__main__":
    write_missing()
