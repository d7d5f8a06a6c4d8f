"""Backlog quotas: the size of a subscription's backlog above which producers are refused.

Only one of Pulsar's quotas is supported: a limit in bytes that refuses producers. Requests for
others are refused, not ignored. The setting in the definitions is `backlog_bytes_max`, see
`topics/definitions/policies.py`; a size below 0 is no limit.
"""

from http import HTTPStatus
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Body, Response
from pydantic import AliasChoices, BaseModel, Field

from lithify.http.admin.definition_settings import (
    applied_to,
    change_settings,
    change_topic_settings,
    settings_of,
    topic_settings_of,
)
from lithify.http.error_responses import RequestRefused
from lithify.http.paths import BrokerDep, NamespacePath, TopicPath

__all__ = ["quota_map", "router"]

router = APIRouter(prefix="/admin/v2", tags=["backlog quotas"])

BACKLOG_BYTES_MAX = "backlog_bytes_max"
POLICY = "producer_exception"

Kind = Literal["destination_storage", "message_age"]
SIZE: Kind = "destination_storage"


class Quota(BaseModel):
    """The limit, and the action when it is exceeded."""

    size_bytes: int = Field(
        default=-1, ge=-1, le=2**62, validation_alias=AliasChoices("limitSize", "limit")
    )
    time_s: int = Field(default=-1, validation_alias="limitTime")
    policy: str


def quota_map(settings: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The quota in settings, with Pulsar's names; empty if it is not set."""
    size_bytes = settings.get(BACKLOG_BYTES_MAX)
    if size_bytes is None:
        return {}
    quota = {"limit": size_bytes, "limitSize": size_bytes, "limitTime": -1, "policy": POLICY}
    return {SIZE: quota}


@router.get("/namespaces/{tenant}/{namespace}/backlogQuotaMap")
async def quotas(name: NamespacePath, broker: BrokerDep) -> dict[str, dict[str, Any]]:
    """The quotas of a namespace."""
    return quota_map(settings_of(broker, name))


@router.post("/namespaces/{tenant}/{namespace}/backlogQuota", status_code=204)
async def set_quota(
    name: NamespacePath,
    broker: BrokerDep,
    wanted: Annotated[Quota, Body()],
    backlogQuotaType: Kind = SIZE,  # noqa: N803  (as clients write it)
) -> Response:
    """Set the backlog quota of a namespace."""
    await change_settings(broker, name, _settings(wanted, backlogQuotaType))
    return Response(status_code=204)


def _settings(wanted: Quota, kind: Kind) -> dict[str, Any]:
    """The settings for the definitions; raises if the quota is not supported."""
    if kind != SIZE or wanted.time_s >= 0:
        raise RequestRefused(
            HTTPStatus.NOT_IMPLEMENTED, "a backlog has a limit of bytes, not of time"
        )
    if wanted.policy != POLICY:
        reason = f"policy {wanted.policy} of a backlog quota is not supported, must be {POLICY}"
        raise RequestRefused(HTTPStatus.NOT_IMPLEMENTED, reason)
    return {BACKLOG_BYTES_MAX: wanted.size_bytes}


@router.delete("/namespaces/{tenant}/{namespace}/backlogQuota", status_code=204)
async def remove_quota(
    name: NamespacePath,
    broker: BrokerDep,
    backlogQuotaType: Kind = SIZE,  # noqa: N803  (as clients write it)
) -> Response:
    """Revert to the setting of the node; there is never a time limit."""
    if backlogQuotaType == SIZE:
        await change_settings(broker, name, {BACKLOG_BYTES_MAX: None})
    return Response(status_code=204)


@router.get("/persistent/{tenant}/{namespace}/{topic}/backlogQuotaMap")
async def topic_quotas(
    name: TopicPath, broker: BrokerDep, *, applied: bool = False
) -> dict[str, dict[str, Any]]:
    """The topic's own quotas, or with `applied` the effective ones."""
    if applied:
        limit_bytes = applied_to(broker, name).backlog_bytes_max
        return quota_map({BACKLOG_BYTES_MAX: limit_bytes} if limit_bytes >= 0 else {})
    return quota_map(topic_settings_of(broker, name))


@router.post("/persistent/{tenant}/{namespace}/{topic}/backlogQuota", status_code=204)
async def set_topic_quota(
    name: TopicPath,
    broker: BrokerDep,
    wanted: Annotated[Quota, Body()],
    backlogQuotaType: Kind = SIZE,  # noqa: N803  (as clients write it)
) -> Response:
    """Set the backlog quota of a topic."""
    await change_topic_settings(broker, name, _settings(wanted, backlogQuotaType))
    return Response(status_code=204)


@router.delete("/persistent/{tenant}/{namespace}/{topic}/backlogQuota", status_code=204)
async def remove_topic_quota(
    name: TopicPath,
    broker: BrokerDep,
    backlogQuotaType: Kind = SIZE,  # noqa: N803  (as clients write it)
) -> Response:
    """Revert to the setting of the namespace."""
    if backlogQuotaType == SIZE:
        await change_topic_settings(broker, name, {BACKLOG_BYTES_MAX: None})
    return Response(status_code=204)
