"""GET_SCHEMA and GET_OR_CREATE_SCHEMA on the wire, which the Python client never sends itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from lithify.pulsar.wire import wire_pb2 as wire
from lithify.pulsar.wire.framing import encode_command
from lithify.topics.schemas.schemas import SCHEMA_BYTES_MAX
from tests.protocol.raw import RawClient, Type

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.protocol.harness import Server

Error = wire.ServerError
ORDER = b'{"type":"record","name":"Order","fields":[{"name":"id","type":"int"}]}'
SPACED = ORDER.replace(b",", b" , ")
WIDER = ORDER.replace(b'"int"}', b'"int"},{"name":"note","type":"string","default":"-"}')
OTHER = ORDER.replace(b'"int"', b'"string"')


def version(number: int) -> bytes:
    return number.to_bytes(8, "big")


def avro(definition: bytes, **more: Any) -> wire.Schema:
    return wire.Schema(name="Order", schema_data=definition, type=wire.Schema.Avro, **more)


class Asker(RawClient):
    """A client that asks about schemas."""

    def get(self, topic: str, which: bytes | None = None) -> wire.CommandGetSchemaResponse:
        command = wire.BaseCommand(type=Type.GET_SCHEMA)
        request = command.getSchema
        request.topic, request.request_id = topic, self._request()
        if which is not None:
            request.schema_version = which
        self.send(encode_command(command))
        reply = self.expect(Type.GET_SCHEMA_RESPONSE).getSchemaResponse
        assert reply.request_id == request.request_id
        # Either what was asked for or an error, never both and never neither.
        assert reply.HasField("schema") is reply.HasField("schema_version")
        assert reply.HasField("schema") is not reply.HasField("error_code")
        return reply

    def get_or_create(
        self, topic: str, schema: wire.Schema
    ) -> wire.CommandGetOrCreateSchemaResponse:
        command = wire.BaseCommand(type=Type.GET_OR_CREATE_SCHEMA)
        request = command.getOrCreateSchema
        request.topic, request.request_id = topic, self._request()
        request.schema.CopyFrom(schema)
        self.send(encode_command(command))
        reply = self.expect(Type.GET_OR_CREATE_SCHEMA_RESPONSE).getOrCreateSchemaResponse
        assert reply.request_id == request.request_id
        assert not (reply.HasField("schema_version") and reply.HasField("error_code"))
        return reply

    def created(self, topic: str, definition: bytes) -> bytes:
        reply = self.get_or_create(topic, avro(definition))
        assert not reply.HasField("error_code"), reply
        return bytes(reply.schema_version)

    def refused(self, topic: str, schema: wire.Schema) -> tuple[int, str]:
        reply = self.get_or_create(topic, schema)
        assert reply.HasField("error_code"), reply
        return reply.error_code, reply.error_message


@pytest.fixture
def asker(broker: Server) -> Iterator[Asker]:
    with Asker(broker.port) as client:
        yield client
        # Nothing it asked has cost it its connection.
        client.ping()


def test_a_new_schema_is_the_next_version_and_a_known_one_keeps_its_own(asker: Asker) -> None:
    assert asker.created("versions", ORDER) == version(0)
    assert asker.created("versions", WIDER) == version(1)
    assert asker.created("versions", ORDER) == version(0)
    assert asker.created("versions", SPACED) == version(0)


def test_the_newest_version_is_returned_by_default(asker: Asker) -> None:
    asker.get_or_create("which", avro(ORDER, properties=[{"key": "made", "value": "here"}]))
    asker.created("which", WIDER)
    newest = asker.get("which")
    assert (newest.schema.schema_data, newest.schema_version) == (WIDER, version(1))
    first = asker.get("which", version(0))
    assert (first.schema.schema_data, first.schema_version) == (ORDER, version(0))
    assert (first.schema.name, first.schema.type) == ("Order", wire.Schema.Avro)
    assert [(p.key, p.value) for p in first.schema.properties] == [("made", "here")]
    # No version at all, as some clients put it, is the newest too.
    assert asker.get("which", b"").schema_version == version(1)


@pytest.mark.parametrize("which", [version(7), version(2**64 - 1), b"\0", b"\0" * 9])
def test_a_missing_version(asker: Asker, which: bytes) -> None:
    asker.created("no-such", ORDER)
    reply = asker.get("no-such", which)
    assert reply.error_code == Error.TopicNotFound
    assert "no-such" in reply.error_message


def test_a_topic_without_a_schema(asker: Asker) -> None:
    asker.producer("plain")
    assert asker.get("plain").error_code == Error.TopicNotFound


def test_requesting_a_schema_creates_no_topic(asker: Asker) -> None:
    assert asker.get("not-there").error_code == Error.TopicNotFound
    command = wire.BaseCommand(type=Type.GET_TOPICS_OF_NAMESPACE)
    command.getTopicsOfNamespace.namespace = "public/default"
    command.getTopicsOfNamespace.request_id = 99
    asker.send(encode_command(command))
    topics = asker.expect(Type.GET_TOPICS_OF_NAMESPACE_RESPONSE).getTopicsOfNamespaceResponse
    assert not [name for name in topics.topics if name.endswith("/not-there")]


def test_invalid_names(asker: Asker) -> None:
    for name in ("persistent://public/default/../x", "a/b", ""):
        assert asker.get(name).error_code == Error.NotAllowedError
        assert asker.refused(name, avro(ORDER))[0] == Error.NotAllowedError


def test_a_schema_that_cannot_read_the_topic_is_refused(asker: Asker) -> None:
    asker.created("refusing", ORDER)
    for schema in (
        avro(OTHER),
        avro(b"{"),
        wire.Schema(name="s", schema_data=b"", type=wire.Schema.String),
    ):
        code, why = asker.refused("refusing", schema)
        assert code == Error.IncompatibleSchema
        assert why
    assert asker.get("refusing").schema_version == version(0)


def test_a_definition_beyond_the_limit(asker: Asker) -> None:
    code, why = asker.refused("too-long", avro(b" " * (SCHEMA_BYTES_MAX + 1)))
    assert code == Error.NotAllowedError
    assert str(SCHEMA_BYTES_MAX) in why


def test_no_schema_has_no_version(asker: Asker) -> None:
    reply = asker.get_or_create(
        "none", wire.Schema(name="", schema_data=b"", type=wire.Schema.NoSchema)
    )
    assert not reply.HasField("schema_version")
    assert not reply.HasField("error_code")
    assert asker.get("none").error_code == Error.TopicNotFound


def test_partitions_use_the_schema_of_their_topic(asker: Asker) -> None:
    parent = "parted-schemas"
    assert asker.created(f"{parent}-partition-1", ORDER) == version(0)
    assert asker.get(f"{parent}-partition-2").schema.schema_data == ORDER
    assert asker.get(parent).schema.schema_data == ORDER


def test_schemas_without_automatic_creation_of_topics(own_broker: Callable[..., Server]) -> None:
    broker = own_broker(auto_create=False, topics={"made": 0})
    with Asker(broker.port) as asker:
        assert asker.created("made", ORDER) == version(0)
        code, why = asker.refused("not-made", avro(ORDER))
        assert code == Error.TopicNotFound
        assert "not-made" in why
        asker.ping()
