"""The schemas of topics: read, add, check, delete."""

import asyncio
from http import HTTPStatus
from typing import Any

from fastapi import APIRouter
from pydantic import BaseModel, Field

from lithify.errors import InvalidInput
from lithify.http.error_responses import RequestRefused
from lithify.http.paths import BrokerDep, TopicPath
from lithify.pulsar.broker import Broker
from lithify.topics.definitions.topic_names import TopicName
from lithify.topics.schemas.schemas import (
    IncompatibleSchema,
    Schema,
    Schemas,
    SchemaType,
    SchemaVersion,
)

__all__ = ["router"]

router = APIRouter(prefix="/admin/v2/schemas/{tenant}/{namespace}/{topic}", tags=["schemas"])


class SchemaBody(BaseModel):
    """A schema in JSON: its type by name, its definition as text."""

    type: str
    definition: str = Field(alias="schema")
    properties: dict[str, str] = {}

    def value(self) -> Schema:
        """The schema as a value of the topics."""
        try:
            kind = SchemaType[self.type.upper()]
        except KeyError:
            raise InvalidInput(f"schema type {self.type!r} is unknown") from None
        return Schema(kind, self.definition.encode(), properties=self.properties)


def _json(found: SchemaVersion) -> dict[str, Any]:
    schema = found.schema
    assert schema is not None
    return {
        "version": found.version,
        "type": schema.type.name,
        "timestamp": found.created_ms,
        "data": schema.definition.decode(errors="replace"),
        "properties": dict(schema.properties),
    }


def _there(name: TopicName, found: SchemaVersion | None) -> SchemaVersion:
    if found is None:
        raise RequestRefused(HTTPStatus.NOT_FOUND, f"topic {name} has no such schema")
    return found


async def _schemas(broker: Broker, name: TopicName) -> Schemas:
    """The schemas of a topic; the first access reads them from disk."""
    found = broker.topics.opened_schemas(name)
    if found is None:
        found = await asyncio.to_thread(broker.topics.schemas, name)
    return found


@router.get("/schema")
async def latest(name: TopicPath, broker: BrokerDep) -> dict[str, Any]:
    """The newest version."""
    return _json(_there(name, (await _schemas(broker, name)).latest()))


@router.get("/schema/{version}")
async def by_version(name: TopicPath, broker: BrokerDep, version: int) -> dict[str, Any]:
    """One version."""
    return _json(_there(name, (await _schemas(broker, name)).get(version)))


@router.get("/schemas")
async def versions(name: TopicPath, broker: BrokerDep) -> dict[str, Any]:
    """All versions."""
    return {"getSchemaResponses": [_json(each) for each in (await _schemas(broker, name)).all()]}


@router.post("/schema")
async def add(name: TopicPath, broker: BrokerDep, body: SchemaBody) -> dict[str, int]:
    """Add a version, unless the topic has the schema; it must be compatible with the newest."""
    schemas = await _schemas(broker, name)
    added = await asyncio.to_thread(schemas.register, body.value())
    return {"version": added.version}


@router.post("/compatibility")
async def compatibility(name: TopicPath, broker: BrokerDep, body: SchemaBody) -> dict[str, Any]:
    """Whether the schema could be added."""
    try:
        schemas = await _schemas(broker, name)
        await asyncio.to_thread(schemas.check, body.value())
    except IncompatibleSchema:
        compatible = False
    else:
        compatible = True
    return {"compatibility": compatible, "schemaCompatibilityStrategy": "BACKWARD"}


@router.delete("/schema")
async def delete(name: TopicPath, broker: BrokerDep) -> dict[str, int]:
    """Delete all versions; the next schema may be any."""
    schemas = await _schemas(broker, name)
    return {"version": await asyncio.to_thread(schemas.delete)}
