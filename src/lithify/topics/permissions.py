"""Who somebody is, and what they may do.

A caller shows a token: a JWT signed with HS256 (a shared secret) or RS256 (the node has the public
key only). It becomes a principal in these steps:

1. The signature must fit the node's key and the one algorithm of that key; what algorithm the token
   itself asks for counts for nothing.
2. `exp` must lie ahead and `nbf` behind, if given. Time is the node's clock, not that of a library.
3. A token with an audience (`aud`), if an empty one, was made for another service and is refused.
4. `sub` is the principal's name.

What a principal may do is looked up anew each time:

- *superusers*, named in the settings, may do everything, and only they may change tenants;
- a tenant's *admins* (`adminRoles` of its definition) may do everything below that tenant;
- others may do in a namespace what its setting `grants`, {principal: [actions]}, says. Each action
  stands for itself: who may administer may not therefore read.

Whatever is not clearly allowed is refused. Pure: keys, clock and definitions are parameters. For
everything that takes requests from outside.
"""

# ruff: noqa: PLC0415  (a node without tokens, and a command, does without cryptography: 50 ms)

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
"""HS256 is no stronger than its secret; this is the size of its hash."""
PUBLIC_KEY_BITS_MIN = 2048


class NotAuthenticated(LithifyError):
    """Nobody knows who this is: no token, or one that is not valid (any more)."""

    exit_code = CONFLICT


class NotAuthorized(LithifyError):
    """It is known who this is, and they may not do this."""

    exit_code = CONFLICT


class Action(StrEnum):
    """What can be granted in a namespace."""

    PRODUCE = "produce"
    CONSUME = "consume"
    ADMIN = "admin"


@dataclass(frozen=True, slots=True)
class Principal:
    """Somebody, and until when we may believe it; None: for ever."""

    name: str
    expires_ms: int | None = None


@dataclass(frozen=True, slots=True, repr=False)
class TokenKey:
    """What tokens are checked with. It has no text form, so that no log shows a secret."""

    algorithm: str
    key: bytes | RSAPublicKey

    @classmethod
    def secret(cls, data: bytes) -> Self:
        """For HS256."""
        if len(data) < SECRET_BYTES_MIN:
            raise InvalidSetting(
                "token secret", f"{len(data)} bytes", f"at least {SECRET_BYTES_MIN} bytes"
            )
        return cls("HS256", data)

    @classmethod
    def public(cls, data: bytes) -> Self:
        """For RS256; PEM or DER."""
        from cryptography.exceptions import UnsupportedAlgorithm
        from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
        from cryptography.hazmat.primitives.serialization import (
            load_der_public_key,
            load_pem_public_key,
        )

        load = load_pem_public_key if data.lstrip().startswith(b"-----") else load_der_public_key
        wanted = f"an RSA public key of at least {PUBLIC_KEY_BITS_MIN} bits, PEM or DER"
        try:
            key = load(data)
        except (ValueError, UnsupportedAlgorithm) as error:
            raise InvalidSetting("token public key", "unreadable", wanted) from error
        if not isinstance(key, RSAPublicKey):
            raise InvalidSetting("token public key", type(key).__name__, wanted)
        if key.key_size < PUBLIC_KEY_BITS_MIN:
            raise InvalidSetting("token public key", f"{key.key_size} bits", wanted)
        return cls("RS256", key)


class Permissions:
    """The one who decides. A node without security has none."""

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
        """The time that tokens are judged by."""
        return self._clock.now_ms()

    def monotonic_s(self) -> float:
        """The clock for how long something took."""
        return self._clock.monotonic_s()

    def authenticate(self, token: bytes) -> Principal:
        """Whose token it is; raises `NotAuthenticated`, whose text does not show the token."""
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
            # Not left to the library, which takes an empty audience for none.
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
        """The same as a question."""
        try:
            self.check(principal, namespace, action)
        except NotAuthorized:
            return False
        return True

    def check(self, principal: Principal, namespace: Namespace, *actions: Action) -> None:
        """Raise `NotAuthorized` unless they may do at least one of `actions` there."""
        if self._is_tenant_admin(principal, namespace.tenant):
            return
        granted = grants_of(self._definitions(), namespace).get(principal.name, ())
        if not any(action in granted for action in actions):
            wanted = " or ".join(actions)
            raise NotAuthorized(f"{principal.name!r} may not {wanted} in {namespace}")

    def check_tenant(self, principal: Principal, tenant: str) -> None:
        """Raise `NotAuthorized` unless they administer the whole tenant."""
        if not self._is_tenant_admin(principal, tenant):
            raise NotAuthorized(f"{principal.name!r} is not an admin of tenant {tenant!r}")

    def check_superuser(self, principal: Principal) -> None:
        """Raise `NotAuthorized` unless they may do everything."""
        if principal.name not in self._superusers:
            raise NotAuthorized(f"{principal.name!r} is not a superuser")

    def _is_tenant_admin(self, principal: Principal, tenant: str) -> bool:
        if principal.name in self._superusers:
            return True
        admins = self._definitions().tenants.get(tenant, {}).get("adminRoles")
        return isinstance(admins, list) and principal.name in admins


def grants_of(definitions: Definitions, namespace: Namespace) -> dict[str, tuple[Action, ...]]:
    """Who may do what in a namespace, by the definitions. What is no grant there counts as none."""
    found = definitions.namespaces.get(str(namespace), NamespaceDefinition())
    grants = found.settings.get("grants")
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
    """Definitions by which `principal` may do exactly `actions` in a namespace; none: nothing."""
    found = definitions.namespace(namespace)
    if not principal:
        raise InvalidInput("a grant needs the name of a principal")
    wanted = set(actions)
    unknown = sorted(wanted - set(Action))
    if unknown:
        raise InvalidInput(f"action {unknown[0]!r} must be one of {', '.join(Action)}")
    grants = {
        name: [str(action) for action in granted]
        for name, granted in grants_of(definitions, namespace).items()
        if name != principal
    }
    if wanted:
        grants[principal] = [str(action) for action in Action if action in wanted]
    changed = replace(found, settings=found.settings | {"grants": grants})
    return definitions.with_namespace(namespace, changed)


def _time_ms(claims: dict[str, Any], name: str) -> int | None:
    """A claim in seconds. One that is there but is no time must not mean "for ever"."""
    if name not in claims:
        return None
    value = claims[name]
    if type(value) is int or (type(value) is float and math.isfinite(value)):
        return int(value) * 1000
    raise NotAuthenticated(f"token is not valid: {name} is not a time")
