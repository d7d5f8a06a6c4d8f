"""Principals may do what was granted to them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from lithify.clock import ManualClock
from lithify.errors import InvalidInput
from lithify.topics.definitions.definitions import Definitions, NamespaceDefinition
from lithify.topics.definitions.topic_names import Namespace
from lithify.topics.permissions import Action, NotAuthorized, Permissions, grants_of, with_grant
from lithify.topics.token_authentication import Principal, TokenKey

SECRET = b"a secret of more than thirty-two bytes"
SHOP = Namespace("shop", "eu")
OTHER = Namespace("shop", "us")
CLOCK = ManualClock()


def definitions(grants: Any = None, admins: Any = ()) -> Definitions:
    settings = {} if grants is None else {"grants": grants}
    return Definitions(
        {"shop": {"adminRoles": list(admins) if isinstance(admins, tuple) else admins}},
        {str(SHOP): NamespaceDefinition(settings), str(OTHER): NamespaceDefinition()},
        {},
    )


def access(known: Definitions) -> Permissions:
    return Permissions(
        TokenKey.secret(SECRET),
        superusers=["root"],
        definitions=lambda: known,
        clock=CLOCK,
    )


def may(known: Definitions, name: str, namespace: Namespace, *actions: Action) -> bool:
    try:
        access(known).check(Principal(name), namespace, *actions)
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
    access(known).check_tenant(Principal("boss"), "shop")
    with pytest.raises(NotAuthorized, match="'boss' is not an admin of tenant 'public'"):
        access(known).check_tenant(Principal("boss"), "public")
    with pytest.raises(NotAuthorized, match="not a superuser"):
        access(known).check_superuser(Principal("boss"))


def test_a_superuser_may_do_everything() -> None:
    known = definitions()
    assert all(may(known, "root", Namespace("none", "such"), action) for action in Action)
    access(known).check_tenant(Principal("root"), "any")
    access(known).check_superuser(Principal("root"))


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
