"""Tokens become principals."""

from __future__ import annotations

import base64
import json
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from lithify.clock import ManualClock
from lithify.errors import InvalidSetting
from lithify.topics.token_authentication import (
    TOKEN_BYTES_MAX,
    NotAuthenticated,
    Principal,
    TokenKey,
    TokenVerifier,
)

SECRET = b"a secret of more than thirty-two bytes"
SIGNER = rsa.generate_private_key(65537, 2048)
ENCODING, FORMAT = serialization.Encoding, serialization.PublicFormat.SubjectPublicKeyInfo
PEM = SIGNER.public_key().public_bytes(ENCODING.PEM, FORMAT)
DER = SIGNER.public_key().public_bytes(ENCODING.DER, FORMAT)
CLOCK = ManualClock()
NOW_S = CLOCK.now_ms() // 1000


def verifier(key: TokenKey | None = None) -> TokenVerifier:
    return TokenVerifier(key or TokenKey.secret(SECRET), CLOCK)


def token(claims: dict[str, Any], key: Any = SECRET, algorithm: str = "HS256") -> bytes:
    return jwt.encode(claims, key, algorithm=algorithm).encode()


def test_a_token_signed_with_the_secret_has_a_subject() -> None:
    assert verifier().verify(token({"sub": "ann"})) == Principal("ann", None)


@pytest.mark.parametrize("public", [PEM, DER], ids=["pem", "der"])
def test_a_token_signed_by_the_key_pair_has_a_subject(public: bytes) -> None:
    known = verifier(TokenKey.public(public))
    assert known.verify(token({"sub": "ann"}, SIGNER, "RS256")).name == "ann"
    stranger = rsa.generate_private_key(65537, 2048)
    with pytest.raises(NotAuthenticated, match="Signature"):
        known.verify(token({"sub": "ann"}, stranger, "RS256"))


def test_a_token_is_believed_until_it_expires_and_not_a_moment_longer() -> None:
    assert verifier().verify(token({"sub": "ann", "exp": NOW_S + 1})) == Principal(
        "ann", (NOW_S + 1) * 1000
    )
    for seconds in (0, -1, -(10**9)):
        with pytest.raises(NotAuthenticated, match="expired"):
            verifier().verify(token({"sub": "ann", "exp": NOW_S + seconds}))


def test_a_token_is_not_believed_before_its_time() -> None:
    assert verifier().verify(token({"sub": "ann", "nbf": NOW_S})).name == "ann"
    with pytest.raises(NotAuthenticated, match="not valid yet"):
        verifier().verify(token({"sub": "ann", "nbf": NOW_S + 1}))


@pytest.mark.parametrize("claim", ["exp", "nbf"])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), "never", None, True, [], {}])
def test_an_invalid_expiry_is_not_treated_as_none(claim: str, value: object) -> None:
    with pytest.raises(NotAuthenticated, match=f"{claim} is not a time"):
        verifier().verify(token({"sub": "ann", claim: value}))


def test_a_time_too_large_for_a_float_is_a_time() -> None:
    found = verifier().verify(token({"sub": "ann", "exp": 10**400}))
    assert found.expires_ms == 10**403
    found = verifier().verify(token({"sub": "ann", "exp": 1e300}))
    assert found.expires_ms is not None


@pytest.mark.parametrize("claims", [{}, {"sub": ""}, {"sub": 7}, {"sub": None}, {"sub": ["root"]}])
def test_a_token_without_a_subject_is_refused(claims: dict[str, Any]) -> None:
    with pytest.raises(NotAuthenticated):
        verifier().verify(token(claims))


def test_a_token_for_another_audience_is_refused() -> None:
    with pytest.raises(NotAuthenticated, match="audience"):
        verifier().verify(token({"sub": "ann", "aud": "another service"}))


@pytest.mark.parametrize("audience", ["", [], None, ["another service"], 0, False, {}])
def test_no_audience_means_no_claim_of_one(audience: object) -> None:
    with pytest.raises(NotAuthenticated):
        verifier().verify(token({"sub": "ann", "aud": audience}))


def test_the_token_does_not_choose_the_algorithm() -> None:
    # Without signature; signed with the public key as if it were a secret; stronger but not ours.
    unsigned = jwt.encode({"sub": "root"}, "", algorithm="none").encode()
    header = base64.urlsafe_b64encode(json.dumps({"alg": "HS256"}).encode()).rstrip(b"=")
    body = base64.urlsafe_b64encode(json.dumps({"sub": "root"}).encode()).rstrip(b"=")
    signed = jwt.get_algorithm_by_name("HS256").sign(header + b"." + body, PEM)
    confused = header + b"." + body + b"." + base64.urlsafe_b64encode(signed).rstrip(b"=")
    for forged in (unsigned, confused, token({"sub": "root"})):
        with pytest.raises(NotAuthenticated):
            verifier(TokenKey.public(PEM)).verify(forged)
    for forged in (unsigned, token({"sub": "root"}, SECRET * 2, "HS512")):
        with pytest.raises(NotAuthenticated):
            verifier().verify(forged)


def test_an_invalid_token_is_refused_and_not_shown() -> None:
    good = token({"sub": "ann"})
    nested = base64.urlsafe_b64encode(b"[" * 9000).rstrip(b"=") + b".e30.e30"
    hostile = [
        b"",
        b"x",
        b"a.b.c",
        b"\xff" * 50,
        b"...",
        good[:-2],
        good + b"A",
        good.replace(b".", b"", 1),
        nested,
        b"x" * (TOKEN_BYTES_MAX + 1),
    ]
    for each in hostile:
        with pytest.raises(NotAuthenticated) as refused:
            verifier().verify(each)
        if len(each) > 5:
            assert each.decode("latin-1") not in str(refused.value)


def test_weak_and_wrong_keys_are_refused_when_the_node_starts() -> None:
    with pytest.raises(InvalidSetting, match="at least 32 bytes"):
        TokenKey.secret(b"x" * 31)
    small = rsa.generate_private_key(65537, 1024).public_key().public_bytes(ENCODING.PEM, FORMAT)
    curve = ec.generate_private_key(ec.SECP256R1()).public_key()
    private = SIGNER.private_bytes(
        ENCODING.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    for bad in (b"", b"no key", small, curve.public_bytes(ENCODING.PEM, FORMAT), private):
        with pytest.raises(InvalidSetting, match="token public key"):
            TokenKey.public(bad)


def test_a_secret_is_never_shown() -> None:
    assert SECRET.decode() not in repr(TokenKey.secret(SECRET))
    with pytest.raises(InvalidSetting) as refused:
        TokenKey.secret(b"short secret")
    assert "short secret" not in str(refused.value)
