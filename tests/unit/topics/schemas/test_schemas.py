"""Schemas get versions, the same one always the same; what could not read the old is refused."""

from __future__ import annotations

import io
import json
import random
from typing import Any

import fastavro
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lithify.clock import ManualClock
from lithify.errors import DamagedFile, InvalidInput, WriteFailed
from lithify.events import ignore_events
from lithify.fs import MemoryFileSystem
from lithify.testing.faulty_fs import Fault, FaultyFileSystem
from lithify.topics.schemas.avro import parse_avro, unreadable
from lithify.topics.schemas.schemas import (
    SCHEMA_BYTES_MAX,
    VERSIONS_MAX,
    IncompatibleSchema,
    Schema,
    Schemas,
    SchemaType,
    version_from_bytes,
    version_to_bytes,
)
from lithify.topics.topics import TopicNotFound, Topics, TopicSettings

DIRECTORY = "/data/orders"
STRING = Schema(SchemaType.STRING)


def open_schemas(fs: MemoryFileSystem | FaultyFileSystem) -> Schemas:
    return Schemas(fs, DIRECTORY, clock=ManualClock())


def record(*fields: dict[str, Any], name: str = "Order", **more: Any) -> Schema:
    definition = {"type": "record", "name": name, "fields": list(fields), **more}
    return Schema(SchemaType.AVRO, json.dumps(definition).encode(), name)


def a_field(name: str, kind: Any = "string", **more: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, **more}


# --- versions -------------------------------------------------------------------------------


def test_each_new_schema_is_the_next_version_and_an_old_one_keeps_its_own() -> None:
    schemas = open_schemas(MemoryFileSystem())
    assert schemas.latest() is None
    first = record(a_field("id"))
    second = record(a_field("id"), a_field("note", default=""))
    assert schemas.register(first).version == 0
    assert schemas.register(second).version == 1
    assert schemas.register(first).version == 0
    latest = schemas.latest()
    assert latest is not None
    assert (latest.version, latest.schema) == (1, second)


def test_a_definition_written_with_other_spaces_is_the_same() -> None:
    schemas = open_schemas(MemoryFileSystem())
    schema = record(a_field("id"))
    spaced = json.dumps(json.loads(schema.definition), indent=4).encode()
    assert schemas.register(schema).version == 0
    assert schemas.register(Schema(SchemaType.AVRO, spaced, "Order")).version == 0


def test_versions_are_there_again_after_a_power_cut() -> None:
    fs = MemoryFileSystem()
    schemas = open_schemas(fs)
    kept = Schema(SchemaType.JSON, record(a_field("id")).definition, "Order", {"team": "risk"})
    schemas.register(kept)
    again = open_schemas(fs.crash_clone(random.Random(1)))
    assert again.all() == schemas.all()
    assert again.register(kept).version == 0


def test_a_version_that_could_not_be_written_does_not_exist() -> None:
    fs = MemoryFileSystem()
    faulty = FaultyFileSystem(fs, [Fault("fsync")])
    schemas = open_schemas(faulty)
    with pytest.raises(WriteFailed):
        schemas.register(STRING)
    assert schemas.latest() is None
    assert open_schemas(fs).latest() is None


def test_after_a_deletion_only_the_version_numbers_continue() -> None:
    fs = MemoryFileSystem()
    schemas = open_schemas(fs)
    schemas.register(STRING)
    assert schemas.delete() == 1
    for each in (schemas, open_schemas(fs)):
        assert each.latest() is None
        assert each.all() == []
        old = each.get(0)
        assert old is not None
        assert old.schema == STRING
        assert each.get(1) is None
    assert schemas.register(record(a_field("id"))).version == 2
    with pytest.raises(IncompatibleSchema):
        schemas.register(STRING)


def test_a_damaged_file_is_named() -> None:
    fs = MemoryFileSystem()
    schemas = open_schemas(fs)
    schemas.register(STRING)
    schemas.delete()
    with fs.open_append(f"{DIRECTORY}/schemas") as file:
        first = file.pread(file.size(), 0).splitlines(keepends=True)[0]
        file.write(first)
    with pytest.raises(DamagedFile, match="version is 0, expected 2"):
        open_schemas(fs)


def test_there_are_limits() -> None:
    with pytest.raises(InvalidInput, match="larger than the limit"):
        Schema(SchemaType.AVRO, bytes(SCHEMA_BYTES_MAX + 1))
    schemas = open_schemas(MemoryFileSystem())
    schemas.register(STRING)
    schemas._versions *= VERSIONS_MAX
    with pytest.raises(InvalidInput, match="the limit"):
        schemas.delete()


def test_a_version_is_eight_bytes_on_the_wire() -> None:
    assert version_to_bytes(258) == b"\0\0\0\0\0\0\1\2"
    assert version_from_bytes(version_to_bytes(258)) == 258
    assert version_from_bytes(b"latest") == -1
    assert open_schemas(MemoryFileSystem()).get(version_from_bytes(b"\xff" * 8)) is None


def test_partitions_share_the_schemas_of_their_topic() -> None:
    fs = MemoryFileSystem()

    def open_topics() -> Topics:
        return Topics(
            fs,
            "/data",
            settings=TopicSettings(),
            clock=ManualClock(),
            events=ignore_events,
            owner="test",
        )

    topics = open_topics()
    topics.create_partitioned("orders", 2)
    assert topics.schemas("orders-partition-0").register(STRING).version == 0
    assert topics.schemas("orders-partition-1") is topics.schemas("orders")
    topics.create("plain-partition-7")
    assert topics.schemas("plain-partition-7").latest() is None
    with pytest.raises(TopicNotFound):
        topics.schemas("orders-partition-2")
    topics.close()
    topics = open_topics()
    assert topics.schemas("orders").latest() is not None
    topics.delete("orders")
    topics.create_partitioned("orders", 2)
    assert topics.schemas("orders").latest() is None
    topics.close()


# --- compatibility --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (record(a_field("id"), a_field("gone")), record(a_field("id"))),
        (record(a_field("id")), record(a_field("id"), a_field("more", "int", default=0))),
        (record(a_field("id")), record(a_field("id"), a_field("m", ["null", "int"], default=None))),
        (record(a_field("n", "int")), record(a_field("n", "double"))),
        (record(a_field("n", "string")), record(a_field("n", "bytes"))),
        (record(a_field("n", "string")), record(a_field("n", ["null", "string"]))),
        (record(a_field("n")), record(a_field("m", aliases=["n"]))),
        (record(a_field("n")), record(a_field("n"), name="Sale", aliases=["shop.Order"])),
        (record(a_field("n"), namespace="a"), record(a_field("n"), namespace="b")),
        (
            record(a_field("e", {"type": "enum", "name": "E", "symbols": ["A"]})),
            record(a_field("e", {"type": "enum", "name": "E", "symbols": ["A", "B"]})),
        ),
        (
            record(a_field("next", ["null", "Order"])),
            record(a_field("next", ["null", "Order"]), a_field("x", default="")),
        ),
    ],
)
def test_a_schema_that_can_read_old_messages_is_the_next_version(old: Schema, new: Schema) -> None:
    schemas = open_schemas(MemoryFileSystem())
    schemas.register(old)
    assert schemas.register(new).version == 1


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        (record(a_field("id")), record(a_field("id"), a_field("more")), "new and has no default"),
        (
            record(a_field("id")),
            record(a_field("id"), a_field("m", ["null", "int"])),
            "field m of Order is new and has no default",
        ),
        (record(a_field("n", "long")), record(a_field("n", "int")), "long cannot be read as int"),
        (record(a_field("n", ["null", "int"])), record(a_field("n", "int")), "null cannot be read"),
        (record(a_field("n")), record(a_field("n"), name="Sale"), "the names differ"),
        (
            record(a_field("e", {"type": "enum", "name": "E", "symbols": ["A", "B"]})),
            record(a_field("e", {"type": "enum", "name": "E", "symbols": ["A"]})),
            "no symbol B",
        ),
        (
            record(a_field("f", {"type": "fixed", "name": "F", "size": 4})),
            record(a_field("f", {"type": "fixed", "name": "F", "size": 8})),
            "4 bytes, the reader expects 8",
        ),
        (
            record(a_field("l", {"type": "array", "items": "string"})),
            record(a_field("l", {"type": "array", "items": "int"})),
            "field l of Order: string cannot be read as int",
        ),
        (
            record(a_field("l", {"type": "map", "values": "int"})),
            record(a_field("l", {"type": "map", "values": ["null", "string"]})),
            "no branch of the union can read int",
        ),
        (STRING, Schema(SchemaType.INT64), "it is INT64, the topic's is STRING"),
        (
            record(a_field("n")),
            Schema(SchemaType.JSON, record(a_field("n")).definition),
            "it is JSON, the topic's is AVRO",
        ),
    ],
)
def test_a_schema_that_cannot_read_old_messages_is_refused_with_the_reason(
    old: Schema, new: Schema, reason: str
) -> None:
    fs = MemoryFileSystem()
    schemas = open_schemas(fs)
    schemas.register(old)
    with pytest.raises(IncompatibleSchema, match=reason):
        schemas.register(new)
    assert len(open_schemas(fs).all()) == 1


def test_only_the_newest_version_is_compared_with() -> None:
    schemas = open_schemas(MemoryFileSystem())
    schemas.register(record(a_field("a")))
    schemas.register(record(a_field("a"), a_field("b", default="")))
    # It could not read version 0, which has no b.
    assert schemas.register(record(a_field("a"), a_field("b"))).version == 2


@pytest.mark.parametrize(
    "definition",
    [
        b"",
        b"{",
        b"\xff",
        b"7",
        b'"Unknown"',
        b'{"type":"object"}',
        b'{"type":"record","fields":[]}',
        b'{"type":"record","name":"A"}',
        b'{"type":"record","name":"A","fields":[7]}',
        b'{"type":"record","name":"A","fields":[{"name":"x"}]}',
        record(a_field("x"), a_field("x"), name="A").definition,
        b'{"type":"fixed","name":"A"}',
        b'{"type":"enum","name":"A","symbols":[1]}',
        b'[{"type":"fixed","name":"A","size":1},{"type":"fixed","name":"A","size":2}]',
        b'{"type":"array"}',
        b'{"type":' * 20_000 + b'"int"' + b"}" * 20_000,
    ],
)
def test_an_invalid_definition_is_refused(definition: bytes) -> None:
    schemas = open_schemas(MemoryFileSystem())
    with pytest.raises(IncompatibleSchema, match=r"definition|record A"):
        schemas.register(Schema(SchemaType.JSON, definition))
    assert schemas.latest() is None


def test_a_failed_branch_does_not_prove_its_parts() -> None:
    # B can be read only if A can; A cannot, for want of x. Read as the other branch, C, the same
    # B has to be checked again.
    b = {"type": "record", "name": "B", "fields": [a_field("a", ["null", "A"])]}
    fields = [a_field("b", b), a_field("n", "int")]
    writer = parse_avro(json.dumps({"type": "record", "name": "A", "fields": fields}).encode())
    strict = [*fields, a_field("x")]
    loose = {"type": "record", "name": "C", "aliases": ["A"], "fields": [a_field("b", "B")]}
    union = [{"type": "record", "name": "A", "fields": strict}, loose]
    assert unreadable(parse_avro(json.dumps(union).encode()), writer) is not None


def test_comparing_takes_bounded_time() -> None:
    def union(count: int, size: int) -> bytes:
        names = (f"N{number}" for number in range(count))
        return json.dumps([{"type": "fixed", "name": n, "size": size} for n in names]).encode()

    reason = unreadable(parse_avro(union(1000, 1)), parse_avro(union(1000, 1)))
    assert reason is not None
    assert unreadable(parse_avro(union(100, 1)), parse_avro(union(100, 1))) is None


# --- against another implementation ---------------------------------------------------------

PRIMITIVES = {
    "null": st.none(),
    "boolean": st.booleans(),
    "int": st.integers(-(2**31), 2**31 - 1),
    "long": st.integers(-(2**63), 2**63 - 1),
    "float": st.floats(width=32, allow_nan=False),
    "double": st.floats(allow_nan=False),
    "string": st.text(max_size=3),
    # Avro lets bytes be read as a string, and trusts that they are one.
    "bytes": st.text(max_size=3).map(str.encode),
}


@st.composite
def types_and_values(draw: st.DrawFn) -> tuple[Any, Any]:
    kind = draw(st.sampled_from([*PRIMITIVES, "array", "map", "union"]))
    if kind in PRIMITIVES:
        return kind, draw(PRIMITIVES[kind])
    inner = draw(st.sampled_from(sorted(PRIMITIVES)))
    value = draw(PRIMITIVES[inner])
    if kind == "array":
        return {"type": "array", "items": inner}, [value]
    if kind == "map":
        return {"type": "map", "values": inner}, {"k": value}
    other = draw(st.sampled_from(sorted(set(PRIMITIVES) - {inner})))
    return [inner, other], (inner, value)


@st.composite
def records(draw: st.DrawFn) -> tuple[dict[str, Any], dict[str, Any]]:
    names = draw(st.sets(st.sampled_from("abcd"), max_size=3))
    fields, value = [], {}
    for name in sorted(names):
        kind, content = draw(types_and_values())
        fields.append(a_field(name, kind))
        value[name] = content
        if kind == "string" and draw(st.booleans()):
            fields[-1]["default"] = ""
    return {"type": "record", "name": "R", "fields": fields}, value


@settings(max_examples=300, deadline=None)
@given(records(), records())
def test_compatible_schemas_are_readable_by_fastavro(
    old: tuple[dict[str, Any], dict[str, Any]], new: tuple[dict[str, Any], dict[str, Any]]
) -> None:
    writer, value = old
    reader, _ = new
    reason = unreadable(
        parse_avro(json.dumps(reader).encode()), parse_avro(json.dumps(writer).encode())
    )
    if reason is None:
        data = io.BytesIO()
        fastavro.schemaless_writer(data, fastavro.parse_schema(writer), value)
        data.seek(0)
        read = fastavro.schemaless_reader(
            data, fastavro.parse_schema(writer), fastavro.parse_schema(reader)
        )
        assert isinstance(read, dict)
        assert set(read) == {each["name"] for each in reader["fields"]}
