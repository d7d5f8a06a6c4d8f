"""Reads and changes the settings in definitions, for HTTP.

The settings of a namespace are the defaults of its topics. Those of a topic apply to all its
partitions, and the name of a partition means the whole topic. The values have the names and units
of `topics/definitions/policies.py`; `settings_conversion.py` has Pulsar's.
"""

import asyncio
from dataclasses import replace
from typing import Any

from lithify.pulsar.broker import Broker
from lithify.topics.definitions.definitions import Definitions, NamespaceDefinition
from lithify.topics.definitions.policies import Policies, policies_of
from lithify.topics.definitions.topic_names import Namespace, TopicName
from lithify.topics.topics import TopicNotFound

__all__ = [
    "applied_to",
    "change_settings",
    "change_topic_settings",
    "settings_of",
    "topic_settings_of",
]


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
