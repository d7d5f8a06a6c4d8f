"""Access control on every route."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import httpx
import jwt
import pytest

from lithify.blobs.replication.http_peer import NAMESPACE
from lithify.blobs.settings import BlobSettings
from lithify.blobs.stores import BlobStores
from lithify.clock import ManualClock
from lithify.errors import DamagedFile
from lithify.events import ignore_events
from lithify.fs import MemoryFileSystem
from lithify.http.app import create_app
from lithify.http.messages.produce import APPENDED_MAX
from lithify.pulsar.broker import Broker
from lithify.topics.definitions.definitions import Definitions, NamespaceDefinition
from lithify.topics.definitions.topic_names import Namespace
from lithify.topics.permissions import Permissions, with_grant
from lithify.topics.token_authentication import TokenKey
from lithify.topics.topics import Topics, TopicSettings
from tests.patience import PROCESS_S_MAX

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Iterator

    from fastapi import FastAPI

SECRET = b"a secret of more than thirty-two bytes"
SHOP = Namespace("shop", "eu")
EVERYBODY = ("stranger", "writer", "reader", "clerk", "boss", "root")

OPEN = {f"/admin/v2/brokers/{name}" for name in ("health", "ready", "version")}
ABOUT_THE_NODE = ("/admin/v2/brokers", "/admin/v2/clusters")


def shop(definitions: Definitions) -> Definitions:
    definitions = definitions.with_tenant("shop", {"adminRoles": ["boss"]})
    definitions = definitions.with_namespace(SHOP, NamespaceDefinition())
    definitions = with_grant(definitions, SHOP, "writer", ["produce"])
    definitions = with_grant(definitions, SHOP, "reader", ["consume"])
    return with_grant(definitions, SHOP, "clerk", ["admin"])


class Site:
    """An application with one shop, and requests to it."""

    def __init__(self, *, secure: bool = True, metrics_open: bool = False) -> None:
        self.clock = ManualClock()
        topics = Topics(
            MemoryFileSystem(),
            "data",
            settings=TopicSettings(),
            clock=self.clock,
            events=ignore_events,
            owner="test",
        )
        topics.definitions.change(shop)
        topics.create("persistent://shop/eu/orders")
        access = Permissions(
            TokenKey.secret(SECRET),
            superusers=["root"],
            definitions=lambda: topics.definitions.current,
            clock=self.clock,
        )
        broker = Broker(topics, name="n", version="v", access=access if secure else None)
        broker.service_url = "pulsar://127.0.0.1:6650"
        stores = BlobStores(
            MemoryFileSystem(),
            "data",
            topics.definitions,
            settings=BlobSettings(),
            clock=self.clock,
            events=ignore_events,
        )
        stores.create("photos", capacity_bytes=2**20, segment_bytes=2**18, namespace=str(SHOP))
        self.app: FastAPI = create_app(broker, stores, metrics_open=metrics_open)
        self._ends = (stores.close, topics.close)

    def close(self) -> None:
        for end in self._ends:
            end()

    def token(self, name: str) -> str:
        expires_s = self.clock.now_ms() // 1000 + 60
        return jwt.encode({"sub": name, "exp": expires_s}, SECRET)

    def ask(
        self, method: str, path: str, authorization: str | None = None, **headers: str
    ) -> httpx.Response:
        if authorization is not None:
            headers["Authorization"] = authorization

        async def answer() -> httpx.Response:
            transport = httpx.ASGITransport(self.app)
            async with httpx.AsyncClient(transport=transport, base_url="http://node") as client:
                return await client.request(method, path, headers=headers)

        return asyncio.run(answer())

    def allowed(self, method: str, path: str) -> set[str]:
        """Those who are not refused. What they get is not the point."""
        statuses = {
            name: self.ask(method, path, f"Bearer {self.token(name)}").status_code
            for name in EVERYBODY
        }
        assert 401 not in statuses.values()
        return {name for name, status in statuses.items() if status != 403}

    def routes(self) -> list[tuple[str, str]]:
        paths = self.app.openapi()["paths"]
        return [(method.upper(), path) for path, methods in paths.items() for method in methods]


@pytest.fixture
def site() -> Iterator[Site]:
    site = Site()
    yield site
    site.close()


def test_only_health_routes_are_public(site: Site) -> None:
    routes = site.routes()
    assert len(routes) > 30
    stranger = f"Bearer {site.token('stranger')}"
    for method, route in routes:
        path = route.format_map(Filled())
        nobody = site.ask(method, path).status_code
        somebody = site.ask(method, path, stranger).status_code
        if route in OPEN:
            assert nobody == somebody == 200, (method, path)
        elif route.startswith(ABOUT_THE_NODE):
            assert (nobody, somebody in {401, 403}) == (401, False), (method, path)
        else:
            assert (nobody, somebody) == (401, 403), (method, path)


class Filled(dict[str, str]):
    """Something for each part of a path."""

    def __missing__(self, part: str) -> str:
        known = {"tenant": "shop", "namespace": "eu", "topic": "orders", "store": "photos"}
        return known.get(part, "1")


TOPIC = "/admin/v2/persistent/shop/eu/orders"
ADMINS = {"clerk", "boss", "root"}
MEMBERS = ADMINS | {"writer", "reader"}


@pytest.mark.parametrize(
    ("method", "path", "who"),
    [
        ("GET", "/lookup/v2/topic/persistent/shop/eu/orders", MEMBERS),
        ("GET", f"{TOPIC}/partitions", MEMBERS),
        ("GET", f"{TOPIC}/stats", MEMBERS),
        ("GET", f"{TOPIC}/subscription/s/position/1", {"reader", "boss", "root"}),
        ("GET", f"{TOPIC}/ledger/0/entry/0", {"reader", "boss", "root"}),
        ("POST", f"{TOPIC}/subscription/s/skip_all", ADMINS | {"reader"}),
        ("DELETE", f"{TOPIC}/subscription/__compaction", ADMINS),
        ("PUT", f"{TOPIC}/compaction", ADMINS),
        ("POST", f"{TOPIC}/compactionSettings", ADMINS),
        ("POST", "/topics/persistent/shop/eu/orders", {"writer", "boss", "root"}),
        ("GET", "/topics/persistent/shop/eu/orders/messages", {"reader", "boss", "root"}),
        ("POST", f"{TOPIC}/subscription/s/skip/1", ADMINS | {"reader"}),
        ("POST", f"{TOPIC}/terminate", ADMINS),
        ("DELETE", f"{TOPIC}/truncate", ADMINS),
        ("POST", f"{TOPIC}/trim", ADMINS),
        ("POST", f"{TOPIC}/maxProducers", ADMINS),
        ("GET", f"{TOPIC}/maxSubscriptionsPerTopic", MEMBERS),
        ("DELETE", f"{TOPIC}/maxSubscriptionsPerTopic", ADMINS),
        ("DELETE", f"{TOPIC}/maxConsumersPerSubscription", ADMINS),
        ("DELETE", TOPIC, ADMINS),
        ("PUT", "/admin/v2/persistent/shop/eu/new", ADMINS),
        ("DELETE", "/admin/v2/namespaces/shop/eu/retention", ADMINS),
        ("DELETE", "/admin/v2/namespaces/shop/eu/backlogQuota", ADMINS),
        ("GET", f"{TOPIC}/backlogQuotaMap", MEMBERS),
        ("DELETE", "/admin/v2/namespaces/shop/eu", {"boss", "root"}),
        ("PUT", "/admin/v2/namespaces/shop/us", {"boss", "root"}),
        ("GET", "/admin/v2/namespaces/shop/eu/permissions", {"boss", "root"}),
        ("POST", "/admin/v2/namespaces/shop/eu/permissions/clerk", {"boss", "root"}),
        ("GET", "/admin/v2/namespaces/shop", {"boss", "root"}),
        ("GET", "/admin/v2/tenants/shop", {"boss", "root"}),
        ("POST", "/admin/v2/tenants/shop", {"root"}),
        ("DELETE", "/admin/v2/tenants/shop", {"root"}),
        ("PUT", "/admin/v2/tenants/new", {"root"}),
        ("GET", "/admin/v2/tenants", {"root"}),
        ("GET", "/admin/v2/persistent/public/default", {"root"}),
        ("GET", "/admin/v2/clusters", set(EVERYBODY)),
        ("GET", "/metrics", {"root"}),
        ("GET", "/admin/v2/unclaimed", {"root"}),
        ("POST", "/admin/v2/unclaimed/topics", {"root"}),
        ("POST", "/admin/v2/unclaimed/stores", {"root"}),
        ("GET", "/blobs?namespace=shop/eu", MEMBERS),
        ("GET", "/blobs", {"root"}),
        ("PUT", "/blobs/new?namespace=shop/eu", ADMINS),
        ("PUT", "/blobs/new", {"root"}),
        ("GET", "/blobs/photos", MEMBERS),
        ("GET", "/blobs/photos/statistics", MEMBERS),
        ("GET", "/blobs/photos/compaction", MEMBERS),
        ("GET", "/blobs/photos/erase", MEMBERS),
        ("GET", "/blobs/photos/settings", MEMBERS),
        ("PATCH", "/blobs/photos/settings", ADMINS),
        ("POST", "/blobs/photos", {"writer", "boss", "root"}),
        ("GET", "/blobs/photos/x", {"reader", "boss", "root"}),
        ("HEAD", "/blobs/photos/x", {"reader", "boss", "root"}),
        ("GET", "/blobs/photos/x/info", {"reader", "boss", "root"}),
        ("GET", "/blobs/photos/list", {"reader", "boss", "root"}),
        ("DELETE", "/blobs/photos/x", {"writer", "boss", "root"}),
        ("PUT", "/blobs/photos/x/ttl", {"writer", "boss", "root"}),
        ("PUT", "/blobs/photos/x/undelete", {"writer", "boss", "root"}),
        ("GET", "/blobs/photos/replicas", MEMBERS),
        ("PUT", "/blobs/photos/replicas", ADMINS),
        ("POST", "/blobs/photos/replication/changes", ADMINS),
        ("POST", "/blobs/photos/replication/records", ADMINS),
        ("POST", "/blobs/photos/replication/unknown", ADMINS),
        ("POST", "/blobs/photos/compaction", ADMINS),
        ("DELETE", "/blobs/photos/compaction", ADMINS),
        ("GET", "/blobs/nothing/x", {"root"}),
    ],
)
def test_each_may_send_what_was_granted(site: Site, method: str, path: str, who: set[str]) -> None:
    assert site.allowed(method, path) == who


def test_a_store_is_deleted_by_the_admin_of_its_namespace(site: Site) -> None:
    statuses = [
        site.ask("DELETE", "/blobs/photos", f"Bearer {site.token(name)}").status_code
        for name in ("writer", "reader", "clerk", "root")
    ]
    assert statuses == [403, 403, 204, 404]


def test_a_store_that_exists_is_refused_as_one_that_does_not(site: Site) -> None:
    """Names of stores are common to all namespaces; who has no right learns of none."""
    stranger = f"Bearer {site.token('stranger')}"
    routes = [(method, path) for method, path in site.routes() if "{store}" in path]
    assert len(routes) > 10
    for method, route in routes:
        if (method, route) == ("PUT", "/blobs/{store}"):
            continue
        for headers in ({}, {NAMESPACE: "public/default"}, {NAMESPACE: str(SHOP)}):
            answers = []
            for store in ("photos", "nosuch"):
                path = route.format_map(Filled(store=store))
                answer = site.ask(method, path, stranger, **headers)
                assert answer.status_code == 403, (method, path)
                answers.append(answer.text.replace(store, "STORE"))
            assert answers[0] == answers[1], (method, route, headers)
    root = f"Bearer {site.token('root')}"
    assert site.ask("GET", "/blobs/nosuch", root).status_code == 404


def test_an_escaped_name_is_the_same_name(site: Site) -> None:
    boss = f"Bearer {site.token('boss')}"
    assert site.ask("GET", "/admin/v2/tenants/sho%70", boss).status_code == 200
    assert site.ask("GET", "/admin/v2/persistent/pu%62lic/default", boss).status_code == 403
    # One part with a slash in it is no name of a tenant: not "shop" and something below it.
    assert site.ask("GET", "/admin/v2/persistent/shop%2Feu/x", boss).status_code == 412


@pytest.mark.parametrize(
    "authorization", ["", "Bearer", "Bearer ", "Bearer a.b.c", "Basic cm9vdDo=", "Bearer \xff\xfe"]
)
def test_an_invalid_token_is_answered_with_401(site: Site, authorization: str) -> None:
    headers = [(b"authorization", authorization.encode("latin-1"))]

    async def answer() -> httpx.Response:
        transport = httpx.ASGITransport(site.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://node") as client:
            return await client.get("/admin/v2/tenants", headers=headers)

    refused = asyncio.run(answer())
    assert refused.status_code == 401
    assert refused.headers["WWW-Authenticate"] == "Bearer"
    assert refused.json()["reason"]


def test_an_expired_token_is_answered_with_401(site: Site) -> None:
    root = f"bearer {site.token('root')}"
    assert site.ask("GET", "/admin/v2/tenants", root).status_code == 200
    site.clock.advance(60)
    assert site.ask("GET", "/admin/v2/tenants", root).status_code == 401


def test_without_security_no_token_is_required() -> None:
    site = Site(secure=False)
    assert site.ask("GET", "/admin/v2/tenants").status_code == 200
    assert site.ask("DELETE", TOPIC).status_code == 204


@pytest.mark.parametrize("end", ["revoke", "expire"])
def test_a_follower_of_a_topic_is_disconnected_at_once(site: Site, end: str) -> None:
    path = "/topics/persistent/shop/eu/orders/messages?follow=true"
    reader, boss = ({"Authorization": f"Bearer {site.token(name)}"} for name in ("reader", "boss"))
    broker = site.app.state.broker

    async def follow() -> str:
        transport = httpx.ASGITransport(site.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://node") as client:
            answer = asyncio.create_task(client.get(path, headers=reader, timeout=None))
            while not broker._arrivals:
                await asyncio.sleep(0)
            if end == "revoke":
                grants = "/admin/v2/namespaces/shop/eu/permissions/reader"
                assert (await client.delete(grants, headers=boss)).status_code == 204
            else:
                site.clock.jump(61)
            return (await asyncio.wait_for(answer, PROCESS_S_MAX)).text

    (last,) = asyncio.run(follow()).splitlines()
    assert ("may not consume" if end == "revoke" else "has expired") in last


@pytest.mark.parametrize("begun", [False, True], ids=["before", "between two pieces"])
def test_a_producer_without_permission_appends_nothing(site: Site, *, begun: bool) -> None:
    """The permission is withdrawn after the request came."""
    topics = site.app.state.broker.topics
    topic = topics.get("persistent://shop/eu/orders")
    writer = {"Authorization": f"Bearer {site.token('writer')}"}
    rows = [{"payload": "x"}] * 2 * APPENDED_MAX

    def end() -> None:
        topics.definitions.change(lambda d: with_grant(d, SHOP, "writer", []))

    async def body() -> AsyncIterator[bytes]:
        # It is read after the caller was let in.
        if not begun:
            end()
        yield json.dumps({"messages": rows}).encode()

    async def withdraw() -> httpx.Response:
        transport = httpx.ASGITransport(site.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://node") as client:
            path = "/topics/persistent/shop/eu/orders"
            answer = asyncio.create_task(client.post(path, content=body(), headers=writer))
            while begun and not topic.writer.messages_in:
                await asyncio.sleep(0)
            if begun:
                end()
            return await answer

    answer = asyncio.run(withdraw())
    if not begun:
        assert answer.status_code == 403
        assert topic.writer.messages_in == 0
        return
    results = answer.json()["messagePublishResults"]
    assert [row["errorCode"] for row in results] == [0] * APPENDED_MAX + [1] * APPENDED_MAX
    assert "may not produce" in results[-1]["errorMsg"]
    assert topic.writer.messages_in == APPENDED_MAX


def walk(routes: Iterable[Any]) -> Iterator[tuple[str, str]]:
    """(method, path) of each route, those of included routers as well."""
    for route in routes:
        included = getattr(route, "original_router", None)
        if included is not None:
            yield from walk(included.routes)
        else:
            yield from ((method, route.path) for method in getattr(route, "methods", {"GET"}))


def test_nothing_is_answered_without_a_token_described_or_not(site: Site) -> None:
    """Also what the framework adds, and paths that no route has."""
    found = {("GET", "/no/such/route"), ("POST", "/metrics/"), *walk(site.app.router.routes)}
    assert len(found) > 150
    assert {("GET", "/openapi.json"), ("GET", "/metrics"), ("GET", "/metrics/")} <= found
    for method, route in sorted(found):
        expected = 200 if route in OPEN else 401
        assert site.ask(method, route.format_map(Filled())).status_code == expected, (method, route)


def test_only_a_superuser_sees_which_file_is_damaged(site: Site) -> None:
    topics = site.app.state.broker.topics
    path = "data/definitions"
    topics.damage.record(DamagedFile(path, 0, "damaged"))
    assert topics.damage_found(), "the file must exist to count"
    health = "/admin/v2/brokers/health"
    for authorization in (None, f"Bearer {site.token('clerk')}"):
        answer = site.ask("GET", health, authorization)
        assert (answer.status_code, answer.json()) == (503, {"reason": "damage was found"})
    assert path in site.ask("GET", health, f"Bearer {site.token('root')}").json()["reason"]


def test_the_description_needs_any_token_and_metrics_a_superuser(site: Site) -> None:
    assert site.ask("GET", "/openapi.json", f"Bearer {site.token('stranger')}").status_code == 200
    assert site.ask("GET", "/metrics", f"Bearer {site.token('clerk')}").status_code == 403
    assert site.ask("GET", "/metrics", f"Bearer {site.token('root')}").status_code == 200


def test_metrics_may_be_public_and_nothing_else_is() -> None:
    site = Site(metrics_open=True)
    assert site.ask("GET", "/metrics").status_code == 200
    assert site.ask("GET", "/metrics/").status_code == 200
    assert site.ask("GET", "/openapi.json").status_code == 401
    site.close()
