"""Namespaces: list, read, create, delete, their topics, and the policies their topics inherit.

Policies stand in the settings of the namespace's definition under the names that `policies.py` of
the topics reads; over HTTP they have Pulsar's names and units.
"""

from http import HTTPStatus
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Body, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from lithify.http.clients import put_out_all
from lithify.http.errors import Refused
from lithify.http.paths import BrokerHere, NamespacePath, TenantPath, decoded
from lithify.http.quotas import quota_map
from lithify.http.settings import change_settings, settings_of
from lithify.topics.access import grants_of, with_grant
from lithify.topics.definitions import AlreadyDefined, Definitions, NamespaceDefinition

__all__ = ["router"]

router = APIRouter(prefix="/admin/v2/namespaces", tags=["namespaces"])

RETENTION_MS = "retention_ms"
RETENTION_BYTES = "retention_bytes"
MESSAGE_TTL_MS = "message_ttl_ms"

MS_PER_MINUTE = 60_000
BYTES_PER_MB = 2**20

Mode = Literal["PERSISTENT", "NON_PERSISTENT", "ALL"]


class Retention(BaseModel):
    """How long, and up to what size, acknowledged messages stay; -1 is without limit."""

    model_config = ConfigDict(populate_by_name=True)
    minutes: int = Field(ge=-1, le=2**40, alias="retentionTimeInMinutes")
    megabytes: int = Field(ge=-1, le=2**40, alias="retentionSizeInMB")


def _done() -> Response:
    return Response(status_code=204)


def _retention(settings: dict[str, Any]) -> dict[str, int] | None:
    time_ms, size_bytes = settings.get(RETENTION_MS), settings.get(RETENTION_BYTES)
    if time_ms is None or size_bytes is None:
        return None
    return {
        "retentionTimeInMinutes": time_ms if time_ms < 0 else time_ms // MS_PER_MINUTE,
        "retentionSizeInMB": size_bytes if size_bytes < 0 else size_bytes // BYTES_PER_MB,
    }


def _ttl_seconds(settings: dict[str, Any]) -> int | None:
    value = settings.get(MESSAGE_TTL_MS)
    return None if value is None else int(value) // 1000


# --- namespaces -------------------------------------------------------------------------------


@router.get("/{tenant}")
async def namespaces(name: TenantPath, broker: BrokerHere) -> list[str]:
    """Those of a tenant."""
    definitions = broker.topics.definitions.current
    definitions.tenant(name)
    return [str(each) for each in definitions.namespaces_of(name)]


@router.get("/{tenant}/{namespace}")
async def policies(request: Request, name: NamespacePath, broker: BrokerHere) -> dict[str, Any]:
    """What holds in a namespace."""
    definitions = broker.topics.definitions.current
    settings = settings_of(broker, name)
    return {
        "auth_policies": {"namespace_auth": grants_of(definitions, name)},
        "replication_clusters": [request.app.state.cluster],
        "bundles": {"boundaries": ["0x00000000", "0xffffffff"], "numBundles": 1},
        "retention_policies": _retention(settings),
        "backlog_quota_map": quota_map(settings),
        "message_ttl_in_seconds": _ttl_seconds(settings),
        "deleted": False,
    }


@router.put("/{tenant}/{namespace}", status_code=204)
async def create_namespace(name: NamespacePath, broker: BrokerHere) -> Response:
    """Define a namespace, which must not exist."""

    def edit(definitions: Definitions) -> Definitions:
        if str(name) in definitions.namespaces:
            raise AlreadyDefined(f"namespace {name} exists already")
        return definitions.with_namespace(name, NamespaceDefinition())

    broker.topics.definitions.change(edit)
    return _done()


@router.delete("/{tenant}/{namespace}", status_code=204)
async def delete_namespace(
    name: NamespacePath, broker: BrokerHere, *, force: bool = False
) -> Response:
    """Remove a namespace; `force` deletes its topics with it."""
    definitions = broker.topics.definitions
    definitions.current.namespace(name)
    if force:
        put_out_all(broker, broker.topics.list(name))
        for topic in definitions.current.topics_of(name):
            broker.topics.delete(topic)
    definitions.change(lambda d: d.without_namespace(name))
    return _done()


@router.get("/{tenant}/{namespace}/topics")
async def topics(name: NamespacePath, broker: BrokerHere, mode: Mode = "PERSISTENT") -> list[str]:
    """Its topics, each partition by itself. All are persistent."""
    broker.topics.definitions.current.namespace(name)
    return [] if mode == "NON_PERSISTENT" else [str(each) for each in broker.topics.list(name)]


@router.put("/{tenant}/{namespace}/unload", status_code=204)
async def unload(name: NamespacePath, broker: BrokerHere) -> Response:
    """Send all clients away; they connect again."""
    broker.topics.definitions.current.namespace(name)
    put_out_all(broker, broker.topics.list(name))
    return _done()


# --- policies ---------------------------------------------------------------------------------


@router.get("/{tenant}/{namespace}/retention")
async def retention(name: NamespacePath, broker: BrokerHere) -> dict[str, int] | None:
    """How long acknowledged messages stay; null if nothing is said."""
    return _retention(settings_of(broker, name))


@router.post("/{tenant}/{namespace}/retention", status_code=204)
async def set_retention(
    name: NamespacePath, broker: BrokerHere, wanted: Annotated[Retention, Body()]
) -> Response:
    """Say how long acknowledged messages stay."""
    minutes, megabytes = wanted.minutes, wanted.megabytes
    values = {
        RETENTION_MS: minutes if minutes < 0 else minutes * MS_PER_MINUTE,
        RETENTION_BYTES: megabytes if megabytes < 0 else megabytes * BYTES_PER_MB,
    }
    change_settings(broker, name, values)
    return _done()


@router.delete("/{tenant}/{namespace}/retention", status_code=204)
async def remove_retention(name: NamespacePath, broker: BrokerHere) -> Response:
    """Back to what holds for the node."""
    change_settings(broker, name, {RETENTION_MS: None, RETENTION_BYTES: None})
    return _done()


@router.get("/{tenant}/{namespace}/messageTTL")
async def message_ttl(name: NamespacePath, broker: BrokerHere) -> int | None:
    """After how many seconds a message counts as acknowledged; null if nothing is said."""
    return _ttl_seconds(settings_of(broker, name))


@router.post("/{tenant}/{namespace}/messageTTL", status_code=204)
async def set_message_ttl(
    name: NamespacePath, broker: BrokerHere, seconds: Annotated[int, Body(le=2**40)]
) -> Response:
    """Say so; 0 is never."""
    if seconds < 0:
        raise Refused(
            HTTPStatus.PRECONDITION_FAILED, f"message TTL is {seconds} s, must be 0 or more"
        )
    change_settings(broker, name, {MESSAGE_TTL_MS: seconds * 1000})
    return _done()


@router.delete("/{tenant}/{namespace}/messageTTL", status_code=204)
async def remove_message_ttl(name: NamespacePath, broker: BrokerHere) -> Response:
    """Back to what holds for the node."""
    change_settings(broker, name, {MESSAGE_TTL_MS: None})
    return _done()


@router.get("/{tenant}/{namespace}/permissions")
async def permissions(name: NamespacePath, broker: BrokerHere) -> dict[str, list[str]]:
    """Who may do what."""
    definitions = broker.topics.definitions.current
    definitions.namespace(name)
    return {role: list(actions) for role, actions in grants_of(definitions, name).items()}


@router.post("/{tenant}/{namespace}/permissions/{role}", status_code=204)
async def grant(
    name: NamespacePath, role: str, broker: BrokerHere, actions: Annotated[list[str], Body()]
) -> Response:
    """Let somebody do exactly these things."""
    broker.topics.definitions.current.namespace(name)
    broker.topics.definitions.change(lambda d: with_grant(d, name, decoded(role), actions))
    return _done()


@router.delete("/{tenant}/{namespace}/permissions/{role}", status_code=204)
async def revoke(name: NamespacePath, role: str, broker: BrokerHere) -> Response:
    """Let somebody do nothing any more."""
    broker.topics.definitions.current.namespace(name)
    broker.topics.definitions.change(lambda d: with_grant(d, name, decoded(role), ()))
    return _done()
