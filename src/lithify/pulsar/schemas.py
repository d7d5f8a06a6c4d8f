"""Schemas on the wire: GET_SCHEMA, GET_OR_CREATE_SCHEMA, and those in PRODUCER and SUBSCRIBE.

A producer's schema becomes the topic's next version if it is compatible. A consumer's has to be
compatible with the topic's; it becomes the first version only of a topic that nobody has written
to. Whoever brings none, or plain bytes, is not asked for one.

A new version waits for the disk, and any new definition for its parser. The functions that end in
`_work` say what is to be done first, so that it is done in a thread; when the command comes again,
its outcome is there.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from lithify.errors import LithifyError
from lithify.pulsar import wire_pb2 as wire
from lithify.pulsar.errors import error_code
from lithify.pulsar.framing import encode_command
from lithify.topics.names import TopicName
from lithify.topics.schemas import (
    IncompatibleSchema,
    Schema,
    Schemas,
    SchemaType,
    SchemaVersion,
    version_from_bytes,
    version_to_bytes,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from lithify.pulsar.session import Session
    from lithify.topics.store import Topics
    from lithify.topics.topic import Topic

__all__ = [
    "SchemaRequests",
    "consumer_schema",
    "consumer_schema_work",
    "producer_schema",
    "producer_schema_work",
]

_Type = wire.BaseCommand
_NO_SCHEMA = frozenset((SchemaType.NONE, SchemaType.AUTO_CONSUME))


def producer_schema_work(
    topics: Topics, topic: Topic, request: wire.CommandProducer
) -> Callable[[], object] | None:
    """What is to be done before `producer_schema`."""
    schema = _from_wire(request.schema) if request.HasField("schema") else None
    return None if schema is None else _registering(topics.schemas(topic.name), schema)


def _registering(schemas: Schemas, schema: Schema) -> Callable[[], object] | None:
    if schemas.is_decided(schema):
        return None
    return partial(schemas.register, schema)


def producer_schema(topics: Topics, topic: Topic, request: wire.CommandProducer) -> bytes:
    """The version of a producer's schema, empty if it has none; raises `IncompatibleSchema`."""
    schema = _from_wire(request.schema) if request.HasField("schema") else None
    if schema is None:
        return b""
    return version_to_bytes(topics.schemas(topic.name).register(schema).version)


def consumer_schema_work(
    topics: Topics, topic: Topic, request: wire.CommandSubscribe
) -> Callable[[], object] | None:
    """What is to be done before `consumer_schema`."""
    schema = _from_wire(request.schema) if request.HasField("schema") else None
    if schema is None:
        return None
    schemas = topics.schemas(topic.name)
    if schemas.is_decided(schema):
        return None
    if schemas.latest() is not None or topic.last_position >= 0 or topic.producers.joined:
        return partial(schemas.decide, schema)
    return partial(schemas.register, schema)


def consumer_schema(topics: Topics, topic: Topic, request: wire.CommandSubscribe) -> None:
    """Check a consumer's schema; raises `IncompatibleSchema`."""
    schema = _from_wire(request.schema) if request.HasField("schema") else None
    if schema is None:
        return
    schemas = topics.schemas(topic.name)
    if schemas.latest() is not None:
        schemas.decide(schema)
    elif topic.last_position >= 0 or topic.producers.joined:
        raise IncompatibleSchema(f"topic {topic.name} has messages without a schema")
    else:
        schemas.register(schema)


class SchemaRequests:
    """What a session is asked about schemas."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def handlers(self) -> dict[int, Callable[[wire.BaseCommand], None]]:
        """The commands that this takes."""
        return {_Type.GET_SCHEMA: self._get, _Type.GET_OR_CREATE_SCHEMA: self._get_or_create}

    def _get(self, command: wire.BaseCommand) -> None:
        request = command.getSchema
        answer = wire.BaseCommand(type=_Type.GET_SCHEMA_RESPONSE)
        reply = answer.getSchemaResponse
        reply.request_id = request.request_id
        try:
            schemas = self._session.host.topics.schemas(TopicName.parse(request.topic))
            found: SchemaVersion | None = schemas.latest()
            if request.schema_version:
                found = schemas.get(version_from_bytes(request.schema_version))
        except LithifyError as error:
            reply.error_code = wire.ServerError.ValueType(error_code(error))
            reply.error_message = str(error)
        else:
            if found is None or found.schema is None:
                # Of all codes the one that clients take as "there is none".
                reply.error_code = wire.ServerError.TopicNotFound
                reply.error_message = f"topic {request.topic} has no such schema"
            else:
                _to_wire(found.schema, reply.schema)
                reply.schema_version = version_to_bytes(found.version)
        self._session.send(encode_command(answer))

    def _get_or_create(self, command: wire.BaseCommand) -> None:
        request = command.getOrCreateSchema
        answer = wire.BaseCommand(type=_Type.GET_OR_CREATE_SCHEMA_RESPONSE)
        reply = answer.getOrCreateSchemaResponse
        reply.request_id = request.request_id
        topics = self._session.host.topics
        try:
            name = TopicName.parse(request.topic)
            if not topics.exists(name):
                self._session.topic(command)
            schema = _from_wire(request.schema)
            if schema is not None:
                schemas, topic = topics.schemas(name), topics.opened_topic(name)
                work = _registering(schemas, schema)
                if topic is not None and self._session.does_first(topic, "schema", work):
                    return
                version = schemas.register(schema).version
                reply.schema_version = version_to_bytes(version)
        except LithifyError as error:
            reply.error_code = wire.ServerError.ValueType(error_code(error))
            reply.error_message = str(error)
        self._session.send(encode_command(answer))


def _from_wire(message: wire.Schema) -> Schema | None:
    kind = SchemaType(message.type)
    if kind in _NO_SCHEMA:
        return None
    properties = {pair.key: pair.value for pair in message.properties}
    return Schema(kind, message.schema_data, message.name, properties)


def _to_wire(schema: Schema, message: wire.Schema) -> None:
    message.name = schema.name
    message.schema_data = schema.definition
    message.type = wire.Schema.Type.ValueType(schema.type)
    for key, value in schema.properties.items():
        message.properties.add(key=key, value=value)
