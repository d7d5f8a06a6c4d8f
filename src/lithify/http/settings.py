"""The settings in a namespace's definition: what its topics do unless they say otherwise."""

from typing import Any

from lithify.pulsar.broker import Broker
from lithify.topics.definitions import Definitions, NamespaceDefinition
from lithify.topics.names import Namespace

__all__ = ["change_settings", "settings_of"]


def settings_of(broker: Broker, name: Namespace) -> dict[str, Any]:
    """Those of a namespace."""
    return broker.topics.definitions.current.namespace(name).settings


def change_settings(broker: Broker, name: Namespace, values: dict[str, Any]) -> None:
    """Set these settings of a namespace; None takes one away."""

    def edit(definitions: Definitions) -> Definitions:
        settings = definitions.namespace(name).settings | values
        kept = {key: value for key, value in settings.items() if value is not None}
        return definitions.with_namespace(name, NamespaceDefinition(kept))

    broker.topics.definitions.change(edit)
