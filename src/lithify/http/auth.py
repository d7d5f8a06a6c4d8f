"""Authenticates and authorizes requests, as one dependency of the application for all its routes.

A request has its token in `Authorization: Bearer TOKEN`. A request without a valid token is refused
before route lookup and before its body is read (`TokenFirst`), even if the route does not exist.
The required permission depends on the method and the route; the first matching row applies:

| route                                       | needs                      |
|---------------------------------------------|----------------------------|
| health, ready, version                      | nothing, not even a token  |
| metrics, if `metrics_open` is set           | nothing, not even a token  |
| GET of /openapi.json                        | a token                    |
| GET of clusters and brokers                 | a token                    |
| a namespace itself, changed; permissions    | an admin of the tenant     |
| messages themselves                         | consume                    |
| messages, produced                          | produce                    |
| subscriptions, changed                      | consume or admin           |
| schemas, changed                            | produce or admin           |
| blobs, read                                 | consume                    |
| blobs, put and changed                      | produce                    |
| in a namespace, GET                         | produce, consume or admin  |
| in a namespace, changed                     | admin                      |
| GET of one tenant and its namespaces        | an admin of the tenant     |
| all others, including metrics and tenants   | a superuser                |

A blob store belongs to the namespace in which it was created, and needs the same permissions there
as a topic.

No `from __future__ import annotations` in modules with routes: FastAPI reads them at run time.
"""

from typing import TYPE_CHECKING

from fastapi import Request
from starlette.datastructures import State

from lithify.blobs.definition import NAMESPACE_DEFAULT
from lithify.blobs.replication.http_peer import NAMESPACE
from lithify.http.error_responses import refusal
from lithify.http.paths import decoded
from lithify.topics.definitions.topic_names import Namespace
from lithify.topics.permissions import Action, NotAuthorized, Permissions
from lithify.topics.token_authentication import NotAuthenticated, Principal

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

    from lithify.blobs.stores import BlobStores

__all__ = ["TokenFirst", "authorize", "caller_of", "check_request", "expires_ms_of", "is_superuser"]

_OPEN = frozenset(f"/admin/v2/brokers/{name}" for name in ("health", "ready", "version"))
_DESCRIPTION = "/openapi.json"
_METRICS = frozenset(("/metrics", "/metrics/"))
_ABOUT_THE_NODE = ("/admin/v2/brokers", "/admin/v2/clusters")
_A_NAMESPACE = "/admin/v2/namespaces/{tenant}/{namespace}"
_A_TENANT = ("/admin/v2/tenants/{tenant}", "/admin/v2/namespaces/{tenant}")
_TOPICS = "/admin/v2/persistent/"
_SCHEMAS = "/admin/v2/schemas/"
_PRODUCED = "/topics/persistent/"
_VIEW = "/subscription/__compaction"
_MESSAGES = ("/position/", "/ledger/", "/examinemessage")
_STORES = "/blobs"
_A_STORE = "/blobs/{store}"
_A_BLOB = "/blobs/{store}/{blob_id}"
_READS = frozenset(("GET", "HEAD"))


class TokenFirst:
    """Refuses every request without a valid token."""

    def __init__(self, app: "ASGIApp") -> None:
        self._app = app

    async def __call__(self, scope: "Scope", receive: "Receive", send: "Send") -> None:
        """Forward the request with its principal, or refuse it."""
        if scope["type"] == "http":
            state = scope["app"].state
            access: Permissions | None = state.broker.access
            if access is not None and not _is_open(scope["path"], state):
                request = Request(scope)
                try:
                    request.state.principal = access.authenticate(_token(request))
                except NotAuthenticated as error:
                    await refusal(request, error)(scope, receive, send)
                    return
        await self._app(scope, receive, send)


def _is_open(path: str, state: State) -> bool:
    return path in _OPEN or (state.metrics_open and path in _METRICS)


async def authorize(request: Request) -> None:
    """Authorize a request; the dependency of all routes."""
    check_request(request)


def check_request(request: Request) -> None:
    """Raise `NotAuthenticated` or `NotAuthorized` unless the request is permitted."""
    access: Permissions | None = request.app.state.broker.access
    route: str = request.scope["route"].path
    if access is None or _is_open(route, request.app.state):
        return
    principal: Principal = request.state.principal
    if principal.expires_ms is not None and access.now_ms() >= principal.expires_ms:
        # The token was valid when the request arrived; a streaming response checks it again.
        principal = access.authenticate(_token(request))
    request.state.expires_ms = principal.expires_ms
    reads = request.method in _READS
    if reads and (route == _DESCRIPTION or route.startswith(_ABOUT_THE_NODE)):
        return
    if route.startswith(_STORES):
        _check_blobs(access, principal, request, route, reads=reads)
        return
    tenant, namespace = _named(request)
    if namespace is not None:
        _check_namespace(access, principal, namespace, route, request.method)
    elif tenant is not None and reads and route in _A_TENANT:
        access.check_tenant(principal, tenant)
    else:
        access.check_superuser(principal)


def caller_of(request: Request) -> str:
    """The caller of a request, for limits per caller: the name in its token, or its address."""
    principal: Principal | None = getattr(request.state, "principal", None)
    if principal is not None:
        return f"name {principal.name}"
    return f"address {request.client.host if request.client else ''}"


def is_superuser(request: Request) -> bool:
    """Whether the caller is a superuser, or authorization is disabled.

    Open routes return less to other callers.
    """
    access: Permissions | None = request.app.state.broker.access
    if access is None:
        return True
    try:
        access.check_superuser(access.authenticate(_token(request)))
    except (NotAuthenticated, NotAuthorized):
        return False
    return True


def expires_ms_of(request: Request) -> int | None:
    """The time at which a streaming response must end; None: never."""
    expires_ms: int | None = getattr(request.state, "expires_ms", None)
    return expires_ms


def _check_namespace(
    access: Permissions, principal: Principal, namespace: Namespace, route: str, method: str
) -> None:
    reads = method in _READS
    if "/permissions" in route or (route == _A_NAMESPACE and not reads):
        access.check_tenant(principal, namespace.tenant)
    elif route.startswith(_PRODUCED):
        access.check(principal, namespace, Action.CONSUME if reads else Action.PRODUCE)
    elif any(part in route for part in _MESSAGES):
        access.check(principal, namespace, Action.CONSUME)
    elif reads:
        access.check(principal, namespace, *Action)
    elif route.startswith(_TOPICS) and "/subscription" in route and _VIEW not in route:
        access.check(principal, namespace, Action.CONSUME, Action.ADMIN)
    elif route.startswith(_SCHEMAS):
        # Deleting the schemas of a topic needs more than registering one.
        registers = () if method == "DELETE" else (Action.PRODUCE,)
        access.check(principal, namespace, *registers, Action.ADMIN)
    else:
        access.check(principal, namespace, Action.ADMIN)


def _check_blobs(
    access: Permissions, principal: Principal, request: Request, route: str, *, reads: bool
) -> None:
    namespace = _namespace_of_store(request, route)
    if _names_store(request, route) and not (
        namespace is not None and any(access.may(principal, namespace, each) for each in Action)
    ):
        # Names of stores are common to all namespaces. So except for superusers, the response
        # does not depend on whether the store exists.
        try:
            access.check_superuser(principal)
        except NotAuthorized:
            name = decoded(request.path_params["store"])
            raise NotAuthorized(f"{principal.name!r} may not use blob store {name!r}") from None
    if namespace is None:
        # There is no such store: its route returns the error.
        return
    if request.headers.get(NAMESPACE, str(namespace)) != str(namespace):
        # A node that replicates a store of one namespace must not read those of others, even if its
        # token allows it: an administrator of one namespace chooses the replicas of a store.
        other = request.headers[NAMESPACE]
        raise NotAuthorized(
            f"a store of namespace {other} may replicate only with stores of the same namespace"
        )
    if route.startswith(_A_BLOB) or route == f"{_A_STORE}/list":
        access.check(principal, namespace, Action.CONSUME if reads else Action.PRODUCE)
    elif route == _A_STORE and request.method == "POST":
        access.check(principal, namespace, Action.PRODUCE)
    elif reads:
        access.check(principal, namespace, *Action)
    else:
        access.check(principal, namespace, Action.ADMIN)


def _names_store(request: Request, route: str) -> bool:
    """Whether the request is for an existing store: it neither creates a store nor lists stores."""
    return route != _STORES and not (route == _A_STORE and request.method == "PUT")


def _namespace_of_store(request: Request, route: str) -> Namespace | None:
    """The namespace of the store in the path, or of a new one; None if there is no such store."""
    stores: BlobStores = request.app.state.blobs.stores
    if not _names_store(request, route):
        return Namespace.parse(request.query_params.get("namespace", NAMESPACE_DEFAULT))
    name = decoded(request.path_params["store"])
    if name not in stores.names():
        return None
    return Namespace.parse(stores.definition(name).namespace)


def _token(request: Request) -> bytes:
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    if scheme.lower() != "bearer":
        raise NotAuthenticated("a token is needed: Authorization: Bearer TOKEN")
    return token.strip().encode("latin-1")


def _named(request: Request) -> tuple[str | None, Namespace | None]:
    """The tenant and the namespace in the path, or None."""
    parts: dict[str, str] = request.path_params
    if "tenant" not in parts:
        return None, None
    tenant = decoded(parts["tenant"])
    if "namespace" not in parts:
        return Namespace(tenant, tenant).tenant, None
    return tenant, Namespace(tenant, decoded(parts["namespace"]))
