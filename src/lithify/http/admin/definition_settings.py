"""Reads, changes and converts the settings in definitions, for HTTP.

The settings of a namespace are the defaults of its topics. Those of a topic apply to all its
partitions, and the name of a partition means the whole topic. The definitions have the names and
units of `topics/definitions/policies.py`; over HTTP they are Pulsar's.
"""

import asyncio
from dataclasses import replace
from http import HTTPStatus
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from lithify.http.errors import RequestRefused
from lithify.pulsar.broker import Broker
from lithify.topics.definitions.definitions import Definitions, NamespaceDefinition
from lithify.topics.definitions.policies import Policies, policies_of
from lithify.topics.definitions.topic_names import Namespace, TopicName
from lithify.topics.topics import TopicNotFound

__all__ = [
    "MESSAGE_TTL_MS",
    "RETENTION_BYTES",
    "RETENTION_MS",
    "Retention",
    "applied_to",
    "change_settings",
    "change_topic_settings",
    "retention_of",
    "settings_of",
    "topic_settings_of",
    "ttl_seconds_of",
    "ttl_settings",
]

RETENTION_MS = "retention_ms"
RETENTION_BYTES = "retention_bytes"
MESSAGE_TTL_MS = "message_ttl_ms"

MS_PER_MINUTE = 60_000
BYTES_PER_MB = 2**20


# --- of a namespace ---------------------------------------------------------------------------


def settings_of(broker: Broker, name: Namespace) -> dict[str, Any]:
    """The settings of a namespace."""
    return broker.topics.definitions.current.namespace(name).settings


async def change_settings(broker: Broker, name: Namespace, values: dict[str, Any]) -> None:
    """Change settings of a namespace; None removes one."""

    def edit(definitions: Definitions) -> Definitions:
        settings = definitions.namespace(name).settings | values
        return definitions.with_namespace(name, NamespaceDefinition(_given(settings)))

    await asyncio.to_thread(broker.topics.definitions.change, edit)


def _given(settings: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in settings.items() if value is not None}


# --- of a topic -------------------------------------------------------------------------------


def _defined(definitions: Definitions, name: TopicName) -> TopicName:
    """The name of the definition: for a partition, that of the whole topic."""
    for each in (name, name.whole):
        if str(each) in definitions.topics:
            return each
    raise TopicNotFound(f"topic {name} does not exist")


def topic_settings_of(broker: Broker, name: TopicName) -> dict[str, Any]:
    """The topic's own settings."""
    if not broker.topics.exists(name):
        raise TopicNotFound(f"topic {name} does not exist")
    current = broker.topics.definitions.current
    return current.topics[str(_defined(current, name))].settings


async def change_topic_settings(broker: Broker, name: TopicName, values: dict[str, Any]) -> None:
    """Change settings of a topic; None removes one."""
    topic_settings_of(broker, name)

    def edit(definitions: Definitions) -> Definitions:
        defined = _defined(definitions, name)
        found = definitions.topics[str(defined)]
        settings = _given(found.settings | values)
        return definitions.with_topic(defined, replace(found, settings=settings))

    await asyncio.to_thread(broker.topics.definitions.change, edit)


def applied_to(broker: Broker, name: TopicName) -> Policies:
    """The effective settings of a topic."""
    topic_settings_of(broker, name)
    topics = broker.topics
    return policies_of(topics.definitions.current, name, topics.settings.policies)


# --- retention and time to live ---------------------------------------------------------------


class Retention(BaseModel):
    """How long, and up to what size, acknowledged messages are kept; -1 is unlimited."""

    model_config = ConfigDict(populate_by_name=True)
    minutes: int = Field(ge=-1, le=2**40, alias="retentionTimeInMinutes")
    megabytes: int = Field(ge=-1, le=2**40, alias="retentionSizeInMB")

    def settings(self) -> dict[str, int]:
        """The settings for the definitions."""
        minutes, megabytes = self.minutes, self.megabytes
        return {
            RETENTION_MS: minutes if minutes < 0 else minutes * MS_PER_MINUTE,
            RETENTION_BYTES: megabytes if megabytes < 0 else megabytes * BYTES_PER_MB,
        }


def retention_of(settings: dict[str, Any]) -> dict[str, int] | None:
    """The retention in settings, with Pulsar's names; None if it is not set."""
    time_ms, size_bytes = settings.get(RETENTION_MS), settings.get(RETENTION_BYTES)
    if time_ms is None or size_bytes is None:
        return None
    return {
        "retentionTimeInMinutes": time_ms if time_ms < 0 else time_ms // MS_PER_MINUTE,
        "retentionSizeInMB": size_bytes if size_bytes < 0 else size_bytes // BYTES_PER_MB,
    }


def ttl_settings(seconds: int) -> dict[str, int]:
    """The settings for the definitions; 0: never."""
    if not 0 <= seconds <= 2**40:
        reason = f"message TTL is {seconds} s, must be 0 or more, and at most 2^40"
        raise RequestRefused(HTTPStatus.PRECONDITION_FAILED, reason)
    return {MESSAGE_TTL_MS: seconds * 1000}


def ttl_seconds_of(settings: dict[str, Any]) -> int | None:
    """The TTL in settings; None if it is not set."""
    value = settings.get(MESSAGE_TTL_MS)
    return None if value is None else int(value) // 1000
