"""Authentication by token, and authorization per namespace.

A client sends a token: a JWT signed with HS256 (a shared secret) or RS256 (the node has only the
public key). It becomes a principal in these steps:

1. Verify the signature with the key of the node and the one algorithm of that key. The algorithm
   that the token names is ignored.
2. `exp` must be in the future and `nbf` in the past, if present. The time is the clock of the node,
   not that of the JWT library.
3. Refuse a token with an audience (`aud`), even an empty one: it was issued for another service.
4. `sub` is the name of the principal.

Permissions are looked up at each request:

- *superusers*, named in the settings, may do everything, and only they may change tenants;
- the *admins* of a tenant (`adminRoles` of its definition) may do everything in that tenant;
- other principals have the actions that the namespace setting `grants`, {principal: [actions]},
  lists. Actions are independent: `admin` does not include `consume`.

Everything that is not explicitly allowed is refused. Pure: keys, clock and definitions are
parameters. Used by every component that accepts requests from clients.
"""

# ruff: noqa: PLC0415  (importing cryptography takes 50 ms; nodes without tokens do not need it)

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Self

from lithify.errors import CONFLICT, InvalidInput, InvalidSetting, LithifyError
from lithify.topics.definitions.definitions import NamespaceDefinition

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey

    from lithify.clock import Clock
    from lithify.topics.definitions.definitions import Definitions
    from lithify.topics.definitions.topic_names import Namespace

__all__ = [
    "Action",
    "NotAuthenticated",
    "NotAuthorized",
    "Permissions",
    "Principal",
    "TokenKey",
    "grants_of",
    "with_grant",
]

TOKEN_BYTES_MAX = 16 * 1024
SECRET_BYTES_MIN = 32
"""The size of an HS256 hash; a shorter secret is weaker than the hash."""
PUBLIC_KEY_BITS_MIN = 2048


class NotAuthenticated(LithifyError):
    """The token is missing, invalid or expired."""

    exit_code = CONFLICT


class NotAuthorized(LithifyError):
    """The principal does not have the permission."""

    exit_code = CONFLICT


class Action(StrEnum):
    """The actions that can be granted in a namespace."""

    PRODUCE = "produce"
    CONSUME = "consume"
    ADMIN = "admin"


@dataclass(frozen=True, slots=True)
class Principal:
    """An authenticated client; `expires_ms` is None if its token does not expire."""

    name: str
    expires_ms: int | None = None


@dataclass(frozen=True, slots=True, repr=False)
class TokenKey:
    """The key that verifies tokens. It has no `repr`, so that secrets do not reach logs."""

    algorithm: str
    key: bytes | RSAPublicKey

    @classmethod
    def secret(cls, data: bytes) -> Self:
        """A shared secret for HS256."""
        if len(data) < SECRET_BYTES_MIN:
            raise InvalidSetting(
                "token secret", f"{len(data)} bytes", f"at least {SECRET_BYTES_MIN} bytes"
            )
        return cls("HS256", data)

    @classmethod
    def public(cls, data: bytes) -> Self:
        """A public key for RS256, in PEM or DER."""
        from cryptography.exceptions import UnsupportedAlgorithm
        from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
        from cryptography.hazmat.primitives.serialization import (
            load_der_public_key,
            load_pem_public_key,
        )

        load = load_pem_public_key if data.lstrip().startswith(b"-----") else load_der_public_key
        required = f"an RSA public key of at least {PUBLIC_KEY_BITS_MIN} bits, PEM or DER"
        try:
            key = load(data)
        except (ValueError, UnsupportedAlgorithm) as error:
            raise InvalidSetting("token public key", "unreadable", required) from error
        if not isinstance(key, RSAPublicKey):
            raise InvalidSetting("token public key", type(key).__name__, required)
        if key.key_size < PUBLIC_KEY_BITS_MIN:
            raise InvalidSetting("token public key", f"{key.key_size} bits", required)
        return cls("RS256", key)


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
        import jwt

        self._jwt = jwt
        self._key = key
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
        """The principal of a token; `NotAuthenticated` messages never contain the token."""
        if not token:
            raise NotAuthenticated("a token is needed and none was given")
        if len(token) > TOKEN_BYTES_MAX:
            raise NotAuthenticated(
                f"token of {len(token)} bytes is larger than the limit {TOKEN_BYTES_MAX}"
            )
        try:
            claims = self._jwt.decode(
                token,
                self._key.key,
                algorithms=[self._key.algorithm],
                options={
                    "verify_exp": False,
                    "verify_nbf": False,
                    "verify_iat": False,
                    "verify_aud": False,
                },
            )
        except (self._jwt.PyJWTError, ValueError, TypeError, RecursionError) as error:
            raise NotAuthenticated(f"token is not valid: {error}") from error
        if "aud" in claims:
            # Checked here: the library treats an empty audience as no audience.
            raise NotAuthenticated("token is not valid: it is for another audience")
        name = claims.get("sub")
        if not isinstance(name, str) or not name:
            raise NotAuthenticated("token is not valid: it has no subject")
        now_ms = self._clock.now_ms()
        starts_ms = _time_ms(claims, "nbf")
        if starts_ms is not None and now_ms < starts_ms:
            raise NotAuthenticated(f"token of {name!r} is not valid yet")
        expires_ms = _time_ms(claims, "exp")
        if expires_ms is not None and now_ms >= expires_ms:
            raise NotAuthenticated(f"token of {name!r} has expired")
        return Principal(name, expires_ms)

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


def _time_ms(claims: dict[str, Any], name: str) -> int | None:
    """A time claim in milliseconds. An invalid one raises, and does not mean "never expires"."""
    if name not in claims:
        return None
    value = claims[name]
    if type(value) is int or (type(value) is float and math.isfinite(value)):
        return int(value) * 1000
    raise NotAuthenticated(f"token is not valid: {name} is not a time")
