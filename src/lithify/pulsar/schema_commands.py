"""Schemas on the wire: GET_SCHEMA, GET_OR_CREATE_SCHEMA, and the schemas in PRODUCER and SUBSCRIBE.

A compatible schema of a producer becomes the next version of the topic's schema. A consumer's
schema must be compatible with the topic's; it becomes the first version only if the topic has no
messages. A client without a schema, or with plain bytes, is accepted.

The first use of a topic's schemas reads them from disk, a new version is written to disk, and a new
definition is parsed. Threads do all three, in the steps of the commands. Their queue is keyed by
the schemas: appends and subscriptions of the topic do not wait in it.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from lithify.errors import LithifyError
from lithify.pulsar.wire import wire_pb2 as wire
from lithify.pulsar.wire.error_codes import error_code
from lithify.pulsar.wire.framing import encode_command
from lithify.topics.definitions.topic_names import TopicName
from lithify.topics.disk_steps import DiskCall
from lithify.topics.schemas.schemas import (
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

    from lithify.pulsar.session_interfaces import CommandSession, Handler
    from lithify.topics.disk_steps import Steps
    from lithify.topics.topic import Topic
    from lithify.topics.topics import Topics

__all__ = ["SchemaRequests", "consumer_schema", "producer_schema"]

_Type = wire.BaseCommand
_NO_SCHEMA = frozenset((SchemaType.NONE, SchemaType.AUTO_CONSUME))


def producer_schema(topics: Topics, topic: Topic, request: wire.CommandProducer) -> Steps[bytes]:
    """Register a producer's schema; returns its version, or b"" for a producer without a schema.

    Raises `IncompatibleSchema`.
    """
    schema = _from_wire(request.schema) if request.HasField("schema") else None
    if schema is None:
        return b""
    schemas = yield from _opened(topics, topic.name)
    return (yield from _registered(schemas, schema))


def consumer_schema(topics: Topics, topic: Topic, request: wire.CommandSubscribe) -> Steps[None]:
    """Check a consumer's schema; raises `IncompatibleSchema`."""
    schema = _from_wire(request.schema) if request.HasField("schema") else None
    if schema is None:
        return
    schemas = yield from _opened(topics, topic.name)

    def find() -> Callable[[], object] | None:
        if schemas.latest() is not None:
            known = schemas.decided(schema) is not None
            return None if known else partial(schemas.decide, schema)
        if topic.last_position >= 0 or topic.producers.joined:
            raise IncompatibleSchema(f"topic {topic.name} has messages without a schema")
        return partial(schemas.register, schema)

    yield DiskCall(schemas, find)


def _opened(topics: Topics, name: TopicName) -> Steps[Schemas]:
    """Read the schemas of a topic unless they are in memory."""
    schemas = topics.opened_schemas(name)
    if schemas is None:
        schemas = yield DiskCall(name, lambda: partial(topics.schemas, name))
    return schemas


def _registered(schemas: Schemas, schema: Schema) -> Steps[bytes]:
    """The version of a schema; registers it if it is new."""
    found = schemas.decided(schema)
    if found is None:
        found = yield DiskCall(schemas, lambda: partial(schemas.register, schema))
    return version_to_bytes(found.version)


class SchemaRequests:
    """Handles the schema commands of a session."""

    def __init__(self, session: CommandSession) -> None:
        self._session = session

    def handlers(self) -> dict[int, Handler]:
        """The handler of each command type of this class."""
        return {_Type.GET_SCHEMA: self._get, _Type.GET_OR_CREATE_SCHEMA: self._get_or_create}

    def _get(self, command: wire.BaseCommand) -> Steps[None]:
        request = command.getSchema
        answer = wire.BaseCommand(type=_Type.GET_SCHEMA_RESPONSE)
        reply = answer.getSchemaResponse
        reply.request_id = request.request_id
        try:
            name = TopicName.parse(request.topic)
            schemas = yield from _opened(self._session.host.topics, name)
            found: SchemaVersion | None = schemas.latest()
            if request.schema_version:
                found = schemas.get(version_from_bytes(request.schema_version))
        except LithifyError as error:
            reply.error_code = wire.ServerError.ValueType(error_code(error))
            reply.error_message = str(error)
        else:
            if found is None or found.schema is None:
                # Clients take this code, and no other, as "no schema".
                reply.error_code = wire.ServerError.TopicNotFound
                reply.error_message = f"topic {request.topic} has no such schema"
            else:
                _to_wire(found.schema, reply.schema)
                reply.schema_version = version_to_bytes(found.version)
        self._session.send(encode_command(answer))

    def _get_or_create(self, command: wire.BaseCommand) -> Steps[None]:
        request = command.getOrCreateSchema
        answer = wire.BaseCommand(type=_Type.GET_OR_CREATE_SCHEMA_RESPONSE)
        reply = answer.getOrCreateSchemaResponse
        reply.request_id = request.request_id
        topics = self._session.host.topics
        try:
            name = TopicName.parse(request.topic)
            if not topics.exists(name):
                yield from self._session.topic(command)
            schema = _from_wire(request.schema)
            if schema is not None:
                schemas = yield from _opened(topics, name)
                reply.schema_version = yield from _registered(schemas, schema)
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
