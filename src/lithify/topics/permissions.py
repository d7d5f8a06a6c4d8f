"""Authorization per namespace: what a principal may do.

`token_authentication.py` names the principal. Permissions are looked up at each request:

- *superusers*, named in the settings, may do everything, and only they may change tenants;
- the *admins* of a tenant (`adminRoles` of its definition) may do everything in that tenant;
- other principals have the actions that the namespace setting `grants`, {principal: [actions]},
  lists. Actions are independent: `admin` does not include `consume`.

Everything that is not explicitly allowed is refused. Pure: keys, clock and definitions are
parameters. Used by every component that accepts requests from clients.
"""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum
from typing import TYPE_CHECKING

from lithify.errors import InvalidInput, LithifyError
from lithify.exit_codes import CONFLICT
from lithify.topics.definitions.definitions import NamespaceDefinition
from lithify.topics.token_authentication import Principal, TokenKey, TokenVerifier

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from lithify.clock import Clock
    from lithify.topics.definitions.definitions import Definitions
    from lithify.topics.definitions.topic_names import Namespace

__all__ = ["Action", "NotAuthorized", "Permissions", "grants_of", "with_grant"]


class NotAuthorized(LithifyError):
    """The principal does not have the permission."""

    exit_code = CONFLICT


class Action(StrEnum):
    """The actions that can be granted in a namespace."""

    PRODUCE = "produce"
    CONSUME = "consume"
    ADMIN = "admin"


class Permissions:
    """Authenticates and authorizes requests. A node without security has no instance."""

    def __init__(
        self,
        key: TokenKey,
        *,
        superusers: Iterable[str],
        definitions: Callable[[], Definitions],
        clock: Clock,
    ) -> None:
        self._tokens = TokenVerifier(key, clock)
        self._superusers = frozenset(superusers)
        self._definitions = definitions
        self._clock = clock

    def now_ms(self) -> int:
        """The time against which tokens are checked."""
        return self._clock.now_ms()

    def monotonic_s(self) -> float:
        """The monotonic clock, for durations."""
        return self._clock.monotonic_s()

    def authenticate(self, token: bytes) -> Principal:
        """The principal of a token; raises `NotAuthenticated`."""
        return self._tokens.verify(token)

    def may(self, principal: Principal, namespace: Namespace, action: Action) -> bool:
        """`check` as a predicate, for one action."""
        try:
            self.check(principal, namespace, action)
        except NotAuthorized:
            return False
        return True

    def check(self, principal: Principal, namespace: Namespace, *actions: Action) -> None:
        """Raise `NotAuthorized` unless the principal has at least one of `actions`."""
        if self._is_tenant_admin(principal, namespace.tenant):
            return
        granted = grants_of(self._definitions(), namespace).get(principal.name, ())
        if not any(action in granted for action in actions):
            needed = " or ".join(actions)
            raise NotAuthorized(f"{principal.name!r} may not {needed} in {namespace}")

    def check_tenant(self, principal: Principal, tenant: str) -> None:
        """Raise `NotAuthorized` unless the principal is an admin of the tenant."""
        if not self._is_tenant_admin(principal, tenant):
            raise NotAuthorized(f"{principal.name!r} is not an admin of tenant {tenant!r}")

    def check_superuser(self, principal: Principal) -> None:
        """Raise `NotAuthorized` unless the principal is a superuser."""
        if principal.name not in self._superusers:
            raise NotAuthorized(f"{principal.name!r} is not a superuser")

    def _is_tenant_admin(self, principal: Principal, tenant: str) -> bool:
        if principal.name in self._superusers:
            return True
        admins = self._definitions().tenants.get(tenant, {}).get("adminRoles")
        return isinstance(admins, list) and principal.name in admins


def grants_of(definitions: Definitions, namespace: Namespace) -> dict[str, tuple[Action, ...]]:
    """The grants of a namespace: {principal: actions}. Malformed grants are ignored."""
    definition = definitions.namespaces.get(str(namespace), NamespaceDefinition())
    grants = definition.settings.get("grants")
    if not isinstance(grants, dict):
        return {}
    return {
        principal: tuple(action for action in Action if action in actions)
        for principal, actions in grants.items()
        if isinstance(actions, list)
    }


def with_grant(
    definitions: Definitions, namespace: Namespace, principal: str, actions: Iterable[str]
) -> Definitions:
    """The definitions in which `principal` has exactly `actions`; none revokes all."""
    definition = definitions.namespace(namespace)
    if not principal:
        raise InvalidInput("a grant needs the name of a principal")
    granted_actions = set(actions)
    unknown = sorted(granted_actions - set(Action))
    if unknown:
        raise InvalidInput(f"action {unknown[0]!r} must be one of {', '.join(Action)}")
    grants = {
        name: [str(action) for action in granted]
        for name, granted in grants_of(definitions, namespace).items()
        if name != principal
    }
    if granted_actions:
        grants[principal] = [str(action) for action in Action if action in granted_actions]
    changed = replace(definition, settings=definition.settings | {"grants": grants})
    return definitions.with_namespace(namespace, changed)
