"""Tenants: list, read, create, change, delete."""

import asyncio
from typing import Any

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel

from lithify.http.paths import BrokerDep, TenantPath
from lithify.topics.definitions.definitions import AlreadyDefined, Definitions

__all__ = ["router"]

router = APIRouter(prefix="/admin/v2/tenants", tags=["tenants"])


class TenantInfo(BaseModel):
    """The settings of a tenant."""

    model_config = ConfigDict(alias_generator=to_camel)
    admin_roles: list[str] = []
    allowed_clusters: list[str] | None = None

    def settings(self, cluster: str) -> dict[str, Any]:
        """The settings for its definition."""
        clusters = [cluster] if self.allowed_clusters is None else self.allowed_clusters
        return {"adminRoles": self.admin_roles, "allowedClusters": clusters}


@router.get("")
async def tenants(broker: BrokerDep) -> list[str]:
    """All tenants."""
    return sorted(broker.topics.definitions.current.tenants)


@router.get("/{tenant}")
async def tenant_info(request: Request, name: TenantPath, broker: BrokerDep) -> dict[str, Any]:
    """One tenant."""
    found = broker.topics.definitions.current.tenant(name)
    return TenantInfo().settings(request.app.state.cluster) | {
        key: found[key] for key in ("adminRoles", "allowedClusters") if key in found
    }


@router.put("/{tenant}", status_code=204)
async def create_tenant(
    request: Request, name: TenantPath, broker: BrokerDep, info: TenantInfo | None = None
) -> Response:
    """Define a tenant, which must not exist."""
    settings = (info or TenantInfo()).settings(request.app.state.cluster)

    def edit(definitions: Definitions) -> Definitions:
        if name in definitions.tenants:
            raise AlreadyDefined(f"tenant {name} already exists")
        return definitions.with_tenant(name, settings)

    await asyncio.to_thread(broker.topics.definitions.change, edit)
    return Response(status_code=204)


@router.post("/{tenant}", status_code=204)
async def change_tenant(
    request: Request, name: TenantPath, broker: BrokerDep, info: TenantInfo
) -> Response:
    """Replace the administrators of a tenant."""
    settings = info.settings(request.app.state.cluster)
    await asyncio.to_thread(
        broker.topics.definitions.change, lambda d: d.with_tenant(name, d.tenant(name) | settings)
    )
    return Response(status_code=204)


@router.delete("/{tenant}", status_code=204)
async def delete_tenant(name: TenantPath, broker: BrokerDep) -> Response:
    """Remove a tenant, which must have no namespaces."""
    await asyncio.to_thread(broker.topics.definitions.change, lambda d: d.without_tenant(name))
    return Response(status_code=204)
