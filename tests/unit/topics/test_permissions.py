"""Tokens become principals, and principals may do what was granted to them."""

from __future__ import annotations

import base64
import json
from dataclasses import replace
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from lithify.clock import ManualClock
from lithify.errors import InvalidInput, InvalidSetting
from lithify.topics.definitions.definitions import Definitions, NamespaceDefinition
from lithify.topics.definitions.topic_names import Namespace
from lithify.topics.permissions import (
    TOKEN_BYTES_MAX,
    Action,
    NotAuthenticated,
    NotAuthorized,
    Permissions,
    Principal,
    TokenKey,
    grants_of,
    with_grant,
)

SECRET = b"a secret of more than thirty-two bytes"
SHOP = Namespace("shop", "eu")
OTHER = Namespace("shop", "us")
SIGNER = rsa.generate_private_key(65537, 2048)
ENCODING, FORMAT = serialization.Encoding, serialization.PublicFormat.SubjectPublicKeyInfo
PEM = SIGNER.public_key().public_bytes(ENCODING.PEM, FORMAT)
DER = SIGNER.public_key().public_bytes(ENCODING.DER, FORMAT)

CLOCK = ManualClock()
NOW_S = CLOCK.now_ms() // 1000


def definitions(grants: Any = None, admins: Any = ()) -> Definitions:
    settings = {} if grants is None else {"grants": grants}
    return Definitions(
        {"shop": {"adminRoles": list(admins) if isinstance(admins, tuple) else admins}},
        {str(SHOP): NamespaceDefinition(settings), str(OTHER): NamespaceDefinition()},
        {},
    )


def access(key: TokenKey | None = None, known: Definitions | None = None) -> Permissions:
    found = definitions() if known is None else known
    return Permissions(
        key or TokenKey.secret(SECRET),
        superusers=["root"],
        definitions=lambda: found,
        clock=CLOCK,
    )


def token(claims: dict[str, Any], key: Any = SECRET, algorithm: str = "HS256") -> bytes:
    return jwt.encode(claims, key, algorithm=algorithm).encode()


# --- who it is --------------------------------------------------------------------------------


def test_a_token_signed_with_the_secret_has_a_subject() -> None:
    assert access().authenticate(token({"sub": "ann"})) == Principal("ann", None)


@pytest.mark.parametrize("public", [PEM, DER], ids=["pem", "der"])
def test_a_token_signed_by_the_key_pair_has_a_subject(public: bytes) -> None:
    known = access(TokenKey.public(public))
    assert known.authenticate(token({"sub": "ann"}, SIGNER, "RS256")).name == "ann"
    stranger = rsa.generate_private_key(65537, 2048)
    with pytest.raises(NotAuthenticated, match="Signature"):
        known.authenticate(token({"sub": "ann"}, stranger, "RS256"))


def test_a_token_is_believed_until_it_expires_and_not_a_moment_longer() -> None:
    assert access().authenticate(token({"sub": "ann", "exp": NOW_S + 1})) == Principal(
        "ann", (NOW_S + 1) * 1000
    )
    for seconds in (0, -1, -(10**9)):
        with pytest.raises(NotAuthenticated, match="expired"):
            access().authenticate(token({"sub": "ann", "exp": NOW_S + seconds}))


def test_a_token_is_not_believed_before_its_time() -> None:
    assert access().authenticate(token({"sub": "ann", "nbf": NOW_S})).name == "ann"
    with pytest.raises(NotAuthenticated, match="not valid yet"):
        access().authenticate(token({"sub": "ann", "nbf": NOW_S + 1}))


@pytest.mark.parametrize("claim", ["exp", "nbf"])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), "never", None, True, [], {}])
def test_an_invalid_expiry_is_not_treated_as_none(claim: str, value: object) -> None:
    with pytest.raises(NotAuthenticated, match=f"{claim} is not a time"):
        access().authenticate(token({"sub": "ann", claim: value}))


def test_a_time_too_large_for_a_float_is_a_time() -> None:
    found = access().authenticate(token({"sub": "ann", "exp": 10**400}))
    assert found.expires_ms == 10**403
    found = access().authenticate(token({"sub": "ann", "exp": 1e300}))
    assert found.expires_ms is not None


@pytest.mark.parametrize("claims", [{}, {"sub": ""}, {"sub": 7}, {"sub": None}, {"sub": ["root"]}])
def test_a_token_without_a_subject_is_refused(claims: dict[str, Any]) -> None:
    with pytest.raises(NotAuthenticated):
        access().authenticate(token(claims))


def test_a_token_for_another_audience_is_refused() -> None:
    with pytest.raises(NotAuthenticated, match="audience"):
        access().authenticate(token({"sub": "ann", "aud": "another service"}))


@pytest.mark.parametrize("audience", ["", [], None, ["another service"], 0, False, {}])
def test_no_audience_means_no_claim_of_one(audience: object) -> None:
    with pytest.raises(NotAuthenticated):
        access().authenticate(token({"sub": "ann", "aud": audience}))


def test_the_token_does_not_choose_the_algorithm() -> None:
    # Without signature; signed with the public key as if it were a secret; stronger but not ours.
    unsigned = jwt.encode({"sub": "root"}, "", algorithm="none").encode()
    header = base64.urlsafe_b64encode(json.dumps({"alg": "HS256"}).encode()).rstrip(b"=")
    body = base64.urlsafe_b64encode(json.dumps({"sub": "root"}).encode()).rstrip(b"=")
    signed = jwt.get_algorithm_by_name("HS256").sign(header + b"." + body, PEM)
    confused = header + b"." + body + b"." + base64.urlsafe_b64encode(signed).rstrip(b"=")
    for forged in (unsigned, confused, token({"sub": "root"})):
        with pytest.raises(NotAuthenticated):
            access(TokenKey.public(PEM)).authenticate(forged)
    for forged in (unsigned, token({"sub": "root"}, SECRET * 2, "HS512")):
        with pytest.raises(NotAuthenticated):
            access().authenticate(forged)


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
            access().authenticate(each)
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


# --- what they may do -------------------------------------------------------------------------


def may(known: Definitions, name: str, namespace: Namespace, *actions: Action) -> bool:
    try:
        access(known=known).check(Principal(name), namespace, *actions)
    except NotAuthorized:
        return False
    return True


def test_a_grant_is_for_one_action_in_one_namespace() -> None:
    known = with_grant(definitions(), SHOP, "ann", ["produce"])
    allowed = {
        (namespace, action)
        for namespace in (SHOP, OTHER, Namespace("none", "such"))
        for action in Action
        if may(known, "ann", namespace, action)
    }
    assert allowed == {(SHOP, Action.PRODUCE)}
    assert may(known, "ann", SHOP, Action.CONSUME, Action.PRODUCE)
    assert not may(known, "ann", SHOP)
    assert not may(known, "an", SHOP, Action.PRODUCE)


def test_a_tenants_admin_may_do_everything_below_it_and_nothing_elsewhere() -> None:
    known = definitions(admins=("boss",))
    for action in Action:
        assert may(known, "boss", SHOP, action)
        assert not may(known, "boss", Namespace("public", "default"), action)
    access(known=known).check_tenant(Principal("boss"), "shop")
    with pytest.raises(NotAuthorized, match="'boss' is not an admin of tenant 'public'"):
        access(known=known).check_tenant(Principal("boss"), "public")
    with pytest.raises(NotAuthorized, match="not a superuser"):
        access(known=known).check_superuser(Principal("boss"))


def test_a_superuser_may_do_everything() -> None:
    known = definitions()
    assert all(may(known, "root", Namespace("none", "such"), action) for action in Action)
    access(known=known).check_tenant(Principal("root"), "any")
    access(known=known).check_superuser(Principal("root"))


@pytest.mark.parametrize(
    "grants",
    ["ann", ["ann"], {"ann": "produce"}, {"ann": None}, {"ann": ["produced"]}, {"ann": {}}, 1],
)
def test_an_invalid_grant_grants_nothing(grants: object) -> None:
    known = definitions(grants, admins="ann")
    assert not any(may(known, "ann", SHOP, action) for action in Action)


def test_grants_are_changed_and_revoked() -> None:
    known = with_grant(definitions(), SHOP, "ann", ["consume", "produce", "produce"])
    known = with_grant(known, SHOP, "bob", ["admin"])
    assert known.namespaces[str(SHOP)].settings["grants"] == {
        "ann": ["produce", "consume"],
        "bob": ["admin"],
    }
    assert Definitions.from_json(known.to_json().encode()) == known
    known = with_grant(known, SHOP, "ann", [])
    assert grants_of(known, SHOP) == {"bob": (Action.ADMIN,)}
    kept = replace(known.namespaces[str(SHOP)], settings={"retention": 1})
    known = with_grant(known.with_namespace(SHOP, kept), SHOP, "ann", ["admin"])
    assert known.namespaces[str(SHOP)].settings == {"retention": 1, "grants": {"ann": ["admin"]}}


def test_an_invalid_grant_is_refused() -> None:
    with pytest.raises(InvalidInput, match="'write' must be one of produce, consume, admin"):
        with_grant(definitions(), SHOP, "ann", ["produce", "write"])
    with pytest.raises(InvalidInput, match="does not exist"):
        with_grant(definitions(), Namespace("none", "such"), "ann", ["produce"])
    with pytest.raises(InvalidInput, match="name of a principal"):
        with_grant(definitions(), SHOP, "", ["produce"])
