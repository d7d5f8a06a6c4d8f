"""Authentication by token: verifies a token and names the principal.

A client sends a token: a JWT signed with HS256 (a shared secret) or RS256 (the node has only the
public key). It becomes a principal in these steps:

1. Verify the signature with the key of the node and the one algorithm of that key. The algorithm
   that the token names is ignored.
2. `exp` must be in the future and `nbf` in the past, if present. The time is the clock of the node,
   not that of the JWT library.
3. Refuse a token with an audience (`aud`), even an empty one: it was issued for another service.
4. `sub` is the name of the principal.

`permissions.py` says what a principal may do. Pure: key and clock are parameters.
"""

# ruff: noqa: PLC0415  (importing cryptography takes 50 ms; nodes without tokens do not need it)

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from lithify.errors import InvalidSetting, LithifyError
from lithify.exit_codes import CONFLICT

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey

    from lithify.clock import Clock

__all__ = ["NotAuthenticated", "Principal", "TokenKey", "TokenVerifier"]

TOKEN_BYTES_MAX = 16 * 1024

SECRET_BYTES_MIN = 32
"""The size of an HS256 hash; a shorter secret is weaker than the hash."""

PUBLIC_KEY_BITS_MIN = 2048


class NotAuthenticated(LithifyError):
    """The token is missing, invalid or expired."""

    exit_code = CONFLICT


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


class TokenVerifier:
    """Verifies tokens with the key of a node."""

    def __init__(self, key: TokenKey, clock: Clock) -> None:
        import jwt

        self._jwt = jwt
        self._key = key
        self._clock = clock

    def verify(self, token: bytes) -> Principal:
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


def _time_ms(claims: dict[str, Any], name: str) -> int | None:
    """A time claim in milliseconds. An invalid one raises, and does not mean "never expires"."""
    if name not in claims:
        return None
    value = claims[name]
    if type(value) is int or (type(value) is float and math.isfinite(value)):
        return int(value) * 1000
    raise NotAuthenticated(f"token is not valid: {name} is not a time")
