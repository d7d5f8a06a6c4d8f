"""Namespaces: list, read, create, delete, their topics, and the policies their topics inherit.

Policies are stored in the settings of the namespace's definition, with the names of
`topics/definitions/policies.py`; over HTTP they have Pulsar's names and units.
"""

import asyncio
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Body, Request, Response

from lithify.http.admin.backlog_quotas import quota_map
from lithify.http.admin.definition_settings import change_settings, settings_of
from lithify.http.admin.disconnect_clients import delete_topic
from lithify.http.admin.disconnect_clients import unload as unload_topics
from lithify.http.admin.settings_conversion import (
    MESSAGE_TTL_MS,
    RETENTION_BYTES,
    RETENTION_MS,
    Retention,
    retention_of,
    ttl_seconds_of,
    ttl_settings,
)
from lithify.http.paths import BrokerDep, NamespacePath, TenantPath, decoded
from lithify.topics.definitions.definitions import AlreadyDefined, Definitions, NamespaceDefinition
from lithify.topics.permissions import grants_of, with_grant

__all__ = ["router"]

router = APIRouter(prefix="/admin/v2/namespaces", tags=["namespaces"])

Mode = Literal["PERSISTENT", "NON_PERSISTENT", "ALL"]


def _done() -> Response:
    return Response(status_code=204)


# --- namespaces -------------------------------------------------------------------------------


@router.get("/{tenant}")
async def namespaces(name: TenantPath, broker: BrokerDep) -> list[str]:
    """The namespaces of a tenant."""
    definitions = broker.topics.definitions.current
    definitions.tenant(name)
    return [str(each) for each in definitions.namespaces_of(name)]


@router.get("/{tenant}/{namespace}")
async def policies(request: Request, name: NamespacePath, broker: BrokerDep) -> dict[str, Any]:
    """The policies of a namespace."""
    definitions = broker.topics.definitions.current
    settings = settings_of(broker, name)
    return {
        "auth_policies": {"namespace_auth": grants_of(definitions, name)},
        "replication_clusters": [request.app.state.cluster],
        "bundles": {"boundaries": ["0x00000000", "0xffffffff"], "numBundles": 1},
        "retention_policies": retention_of(settings),
        "backlog_quota_map": quota_map(settings),
        "message_ttl_in_seconds": ttl_seconds_of(settings),
        "deleted": False,
    }


@router.put("/{tenant}/{namespace}", status_code=204)
async def create_namespace(name: NamespacePath, broker: BrokerDep) -> Response:
    """Define a namespace, which must not exist."""

    def edit(definitions: Definitions) -> Definitions:
        if str(name) in definitions.namespaces:
            raise AlreadyDefined(f"namespace {name} already exists")
        return definitions.with_namespace(name, NamespaceDefinition())

    await asyncio.to_thread(broker.topics.definitions.change, edit)
    return _done()


@router.delete("/{tenant}/{namespace}", status_code=204)
async def delete_namespace(
    name: NamespacePath, broker: BrokerDep, *, force: bool = False
) -> Response:
    """Remove a namespace, which must have no blob stores; `force` deletes its topics with it."""
    definitions = broker.topics.definitions
    definitions.current.namespace(name)
    if force:
        # Before anything is deleted: blob stores are not deleted with it.
        definitions.current.check_no_stores(name)
        # Those of other nodes last: the request is redirected to each of them in turn.
        owns = definitions.current.owns
        for topic in sorted(definitions.current.topics_of(name), key=owns, reverse=True):
            await delete_topic(broker, topic, force=True)
    await asyncio.to_thread(definitions.change, lambda d: d.without_namespace(name))
    return _done()


@router.get("/{tenant}/{namespace}/topics")
async def topics(name: NamespacePath, broker: BrokerDep, mode: Mode = "PERSISTENT") -> list[str]:
    """The topics of a namespace, with each partition as a topic. All are persistent."""
    broker.topics.definitions.current.namespace(name)
    return [] if mode == "NON_PERSISTENT" else broker.topics.names_in(name)


@router.put("/{tenant}/{namespace}/unload", status_code=204)
async def unload(name: NamespacePath, broker: BrokerDep) -> Response:
    """Disconnect all clients and close the topics; the clients reconnect."""
    broker.topics.definitions.current.namespace(name)
    await unload_topics(broker, broker.topics.list(name))
    return _done()


# --- policies ---------------------------------------------------------------------------------


@router.get("/{tenant}/{namespace}/retention")
async def retention(name: NamespacePath, broker: BrokerDep) -> dict[str, int] | None:
    """How long acknowledged messages are kept; null if it is not set."""
    return retention_of(settings_of(broker, name))


@router.post("/{tenant}/{namespace}/retention", status_code=204)
async def set_retention(
    name: NamespacePath, broker: BrokerDep, wanted: Annotated[Retention, Body()]
) -> Response:
    """Set how long acknowledged messages are kept."""
    await change_settings(broker, name, wanted.settings())
    return _done()


@router.delete("/{tenant}/{namespace}/retention", status_code=204)
async def remove_retention(name: NamespacePath, broker: BrokerDep) -> Response:
    """Revert to the setting of the node."""
    await change_settings(broker, name, {RETENTION_MS: None, RETENTION_BYTES: None})
    return _done()


@router.get("/{tenant}/{namespace}/messageTTL")
async def message_ttl(name: NamespacePath, broker: BrokerDep) -> int | None:
    """The seconds after which a message counts as acknowledged; null if it is not set."""
    return ttl_seconds_of(settings_of(broker, name))


@router.post("/{tenant}/{namespace}/messageTTL", status_code=204)
async def set_message_ttl(
    name: NamespacePath, broker: BrokerDep, seconds: Annotated[int, Body(le=2**40)]
) -> Response:
    """Set the time to live of messages; 0: never."""
    await change_settings(broker, name, ttl_settings(seconds))
    return _done()


@router.delete("/{tenant}/{namespace}/messageTTL", status_code=204)
async def remove_message_ttl(name: NamespacePath, broker: BrokerDep) -> Response:
    """Revert to the setting of the node."""
    await change_settings(broker, name, {MESSAGE_TTL_MS: None})
    return _done()


@router.get("/{tenant}/{namespace}/permissions")
async def permissions(name: NamespacePath, broker: BrokerDep) -> dict[str, list[str]]:
    """The permissions of each role."""
    definitions = broker.topics.definitions.current
    definitions.namespace(name)
    return {role: list(actions) for role, actions in grants_of(definitions, name).items()}


@router.post("/{tenant}/{namespace}/permissions/{role}", status_code=204)
async def grant(
    name: NamespacePath, role: str, broker: BrokerDep, actions: Annotated[list[str], Body()]
) -> Response:
    """Set the permissions of a role, replacing earlier ones."""
    broker.topics.definitions.current.namespace(name)
    await asyncio.to_thread(
        broker.topics.definitions.change, lambda d: with_grant(d, name, decoded(role), actions)
    )
    return _done()


@router.delete("/{tenant}/{namespace}/permissions/{role}", status_code=204)
async def revoke(name: NamespacePath, role: str, broker: BrokerDep) -> Response:
    """Remove all permissions of a role."""
    broker.topics.definitions.current.namespace(name)
    await asyncio.to_thread(
        broker.topics.definitions.change, lambda d: with_grant(d, name, decoded(role), ())
    )
    return _done()
