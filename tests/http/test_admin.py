"""Tenants, namespaces, topics and the rest of the admin paths, as Pulsar's tools use them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from lithify.topics.producers.producers import Producer
from lithify.topics.subscriptions.subscription import SubscriptionType
from tests.http.node import ORDERS, HttpNode

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator


@pytest.fixture
def node() -> Iterator[HttpNode]:
    with HttpNode() as node:
        yield node


def test_a_node_says_what_it_is(node: HttpNode) -> None:
    assert node.get("/clusters") == ["standalone"]
    assert node.get("/clusters/standalone")["brokerServiceUrl"] == "pulsar://127.0.0.1:6650"
    assert "cluster mars" in node.refused(404, "GET", "/clusters/mars")
    assert node.get("/brokers") == node.get("/brokers/standalone") == ["node:8080"]
    assert node.get("/brokers/leaderBroker")["serviceUrl"] == "http://node:8080"
    for name, text in (("health", "ok"), ("ready", "ok"), ("version", "Lithify 0")):
        assert node.ask("GET", f"/admin/v2/brokers/{name}").text == text


def test_a_node_is_not_ready_before_it_listens(node: HttpNode) -> None:
    node.broker.service_url = ""
    assert "not listening" in node.refused(503, "GET", "/brokers/ready")


def test_the_life_of_a_tenant(node: HttpNode) -> None:
    node.do("PUT", "/tenants/acme", {"adminRoles": ["ann"], "allowedClusters": ["standalone"]})
    assert node.get("/tenants") == ["acme", "public"]
    assert node.get("/tenants/acme")["adminRoles"] == ["ann"]
    assert "exists" in node.refused(409, "PUT", "/tenants/acme")
    node.do("POST", "/tenants/acme", {"adminRoles": ["bob"]})
    assert node.get("/tenants/acme") == {"adminRoles": ["bob"], "allowedClusters": ["standalone"]}
    node.do("PUT", "/namespaces/acme/shop")
    assert "acme/shop" in node.refused(409, "DELETE", "/tenants/acme")
    node.do("DELETE", "/namespaces/acme/shop")
    node.do("DELETE", "/tenants/acme")
    for method in ("GET", "DELETE"):
        assert "does not exist" in node.refused(404, method, "/tenants/acme")
    assert "does not exist" in node.refused(404, "POST", "/tenants/acme", {})


def test_the_life_of_a_namespace(node: HttpNode) -> None:
    node.do("PUT", "/namespaces/public/shop")
    assert node.get("/namespaces/public") == ["public/default", "public/shop"]
    assert "exists" in node.refused(409, "PUT", "/namespaces/public/shop")
    assert "tenant mars" in node.refused(404, "PUT", "/namespaces/mars/shop")
    assert "tenant mars" in node.refused(404, "GET", "/namespaces/mars")
    node.topic("persistent://public/shop/orders")
    assert node.get("/namespaces/public/shop/topics") == ["persistent://public/shop/orders"]
    assert node.get("/namespaces/public/shop/topics?mode=NON_PERSISTENT") == []
    assert "has topics" in node.refused(409, "DELETE", "/namespaces/public/shop")
    node.do("DELETE", "/namespaces/public/shop?force=true")
    assert not node.topics.exists("persistent://public/shop/orders")
    assert "does not exist" in node.refused(404, "GET", "/namespaces/public/shop/topics")


def test_policies_of_a_namespace(node: HttpNode) -> None:
    at = "/namespaces/public/default"
    assert node.get(f"{at}/retention") is None
    assert node.get(f"{at}/messageTTL") is None
    wanted = {"retentionTimeInMinutes": 10, "retentionSizeInMB": -1}
    node.do("POST", f"{at}/retention", wanted)
    node.do("POST", f"{at}/messageTTL", 60)
    assert node.get(f"{at}/retention") == wanted
    held = node.topic().policies()
    assert (held.retention_ms, held.retention_bytes) == (600_000, -1)
    assert held.message_ttl_ms == 60_000
    policies = node.get(at)
    assert policies["retention_policies"] == wanted
    assert policies["message_ttl_in_seconds"] == 60
    assert "-1 s" in node.refused(412, "POST", f"{at}/messageTTL", -1)
    assert "retentionSizeInMB" in node.refused(
        400, "POST", f"{at}/retention", {"retentionTimeInMinutes": 1}
    )
    node.do("DELETE", f"{at}/retention")
    node.do("DELETE", f"{at}/messageTTL")
    assert node.get(f"{at}/retention") is None
    assert node.get(f"{at}/messageTTL") is None
    assert node.topics.definitions.current.namespaces["public/default"].settings == {}


def test_the_backlog_quota_of_a_namespace(node: HttpNode) -> None:
    at = "/namespaces/public/default"
    topic = node.topic()
    of_topic = "/persistent/public/default/orders/backlogQuotaMap"
    assert node.get(f"{at}/backlogQuotaMap") == {}
    assert node.get(f"{of_topic}?applied=true") == {}
    wanted = {"limitSize": 4096, "limitTime": -1, "policy": "producer_exception"}
    node.do("POST", f"{at}/backlogQuota?backlogQuotaType=destination_storage", wanted)
    told = {"destination_storage": {"limit": 4096, **wanted}}
    assert node.get(f"{at}/backlogQuotaMap") == told
    assert node.get(at)["backlog_quota_map"] == told
    assert node.get(of_topic) == {}
    assert node.get(f"{of_topic}?applied=true") == told
    assert topic.policies().backlog_bytes_max == 4096
    node.do("POST", f"{at}/backlogQuota", {"limit": 8192, "policy": "producer_exception"})
    assert topic.policies().backlog_bytes_max == 8192
    node.do("DELETE", f"{at}/backlogQuota?backlogQuotaType=message_age")
    assert topic.policies().backlog_bytes_max == 8192, "that is another quota"
    node.do("DELETE", f"{at}/backlogQuota")
    assert node.get(f"{at}/backlogQuotaMap") == {}
    assert topic.policies().backlog_bytes_max == -1
    missing = "/persistent/public/default/nowhere/backlogQuotaMap"
    assert "does not exist" in node.refused(404, "GET", missing)


@pytest.mark.parametrize(
    ("query", "changed", "reason"),
    [
        (
            "",
            {"policy": "consumer_backlog_eviction"},
            "is not supported, must be producer_exception",
        ),
        ("", {"limitTime": 60}, "not of time"),
        ("?backlogQuotaType=message_age", {}, "not of time"),
    ],
)
def test_a_quota_that_would_not_be_kept_is_refused(
    node: HttpNode, query: str, changed: dict[str, Any], reason: str
) -> None:
    wanted = {"limitSize": 4096, "limitTime": -1, "policy": "producer_exception"} | changed
    path = f"/namespaces/public/default/backlogQuota{query}"
    assert reason in node.refused(501, "POST", path, wanted)
    assert node.get("/namespaces/public/default/backlogQuotaMap") == {}


def test_permissions_of_a_namespace(node: HttpNode) -> None:
    at = "/namespaces/public/default/permissions"
    node.do("POST", f"{at}/ann", ["produce", "consume"])
    assert node.get(at) == {"ann": ["produce", "consume"]}
    assert "fly" in node.refused(412, "POST", f"{at}/ann", ["fly"])
    node.do("DELETE", f"{at}/ann")
    assert node.get(at) == {}


def test_the_life_of_a_topic(node: HttpNode) -> None:
    at = "/persistent/public/default/orders"
    node.do("PUT", at)
    assert "exists" in node.refused(409, "PUT", at)
    assert node.get("/persistent/public/default") == [ORDERS]
    assert node.get("/non-persistent/public/default") == []
    assert node.get("/non-persistent/public/default/partitioned") == []
    assert node.get(f"{at}/partitions")["partitions"] == 0
    assert node.get(f"{at}/lastMessageId") == {"ledgerId": -1, "entryId": -1, "partitionIndex": -1}
    node.do("DELETE", at)
    assert "does not exist" in node.refused(404, "DELETE", at)
    for path in ("stats", "internalStats", "subscriptions", "lastMessageId", "partitions"):
        assert "does not exist" in node.refused(404, "GET", f"{at}/{path}")
    assert node.get("/persistent/public/default") == []
    assert "namespace mars/x" in node.refused(404, "PUT", "/persistent/mars/x/orders")


def test_a_topic_in_use_is_deleted_only_by_force(node: HttpNode) -> None:
    topic = node.topic()
    topic.producers.add(Producer("p"))
    at = "/persistent/public/default/orders"
    assert "in use" in node.refused(412, "DELETE", at)
    node.do("DELETE", f"{at}?force=true")
    assert not node.topics.exists(ORDERS)


def test_the_life_of_a_partitioned_topic(node: HttpNode) -> None:
    at = "/persistent/public/default/orders"
    node.do("PUT", f"{at}/partitions", 2)
    assert node.get("/persistent/public/default/partitioned") == [ORDERS]
    assert node.get("/persistent/public/default") == [f"{ORDERS}-partition-{i}" for i in (0, 1)]
    assert "partitioned" in node.refused(412, "DELETE", at)
    assert "partition: delete" in node.refused(412, "DELETE", f"{at}-partition-0")
    assert "partitioned" in node.refused(404, "GET", f"{at}/stats")
    assert "partitioned" in node.refused(405, "GET", f"{at}/lastMessageId")
    node.do("PUT", f"{at}/subscription/s")
    node.topic(f"{ORDERS}-partition-0", 3)
    node.topic(f"{ORDERS}-partition-1", 4)
    stats = node.get(f"{at}/partitioned-stats")
    assert stats["msgInCounter"] == 7
    assert stats["subscriptions"]["s"]["msgBacklog"] == 7
    assert stats["partitions"][f"{ORDERS}-partition-1"]["msgInCounter"] == 4
    internal = node.get(f"{at}/partitioned-internalStats")
    assert internal["partitions"][f"{ORDERS}-partition-0"]["numberOfEntries"] == 3
    node.do("POST", f"{at}/subscription/s/skip_all")
    assert node.get(f"{at}/partitioned-stats")["subscriptions"]["s"]["msgBacklog"] == 0
    assert "fewer" in node.refused(422, "POST", f"{at}/partitions", 1)
    node.do("POST", f"{at}/partitions", 5)
    assert node.get(f"{at}/partitions") == {"partitions": 5, "deleted": False}
    node.do("DELETE", f"{at}/partitions")
    assert node.get("/persistent/public/default") == []
    assert "1 to" in node.refused(406, "PUT", f"{at}/partitions", 0)
    node.do("PUT", at)
    for method, path in (("GET", "partitioned-stats"), ("DELETE", "partitions")):
        assert "not partitioned" in node.refused(404, method, f"{at}/{path}")


def test_clients_that_may_create_a_topic_get_zero_partitions(
    node: HttpNode,
) -> None:
    at = "/persistent/public/default/new/partitions"
    assert node.get(f"{at}?checkAllowAutoCreation=true")["partitions"] == 0
    assert "does not exist" in node.refused(404, "GET", at)
    assert not node.topics.exists("persistent://public/default/new")
    with HttpNode(auto_create=False) as strict:
        assert "does not exist" in strict.refused(404, "GET", f"{at}?checkAllowAutoCreation=true")


def test_lookup(node: HttpNode) -> None:
    found = node.ask("GET", "/lookup/v2/topic/persistent/public/default/orders").json()
    assert found == {
        "brokerId": "node:8080",
        "brokerUrl": "pulsar://127.0.0.1:6650",
        "brokerUrlTls": "",
        "httpUrl": "http://node:8080",
        "httpUrlTls": "",
        "nativeUrl": "pulsar://127.0.0.1:6650",
    }
    assert node.ask("GET", "/lookup/v2/topic/persistent/mars/x/orders").status_code == 404


@pytest.mark.parametrize(
    "path",
    [
        "/namespaces/%2E%2E/default",
        "/namespaces/a%2Fb/default",
        "/persistent/public/default/%2E%2E",
        "/persistent/public/default/..%2F..%2Fetc",
        "/persistent/public/default/a%2F%2E%2E%2Fb",
        "/persistent/public/default/a%00b",
        "/persistent/public/default/a%FFb",
        "/persistent/public/%2e/a",
        f"/persistent/public/default/{'x' * 300}",
        "/tenants/a%20b",
    ],
)
def test_a_bad_name_is_refused_and_leads_nowhere(node: HttpNode, path: str) -> None:
    before = node.topics.definitions.current
    assert node.refused(412, "PUT", path)
    assert node.topics.definitions.current == before


def test_a_topic_may_have_an_encoded_slash(node: HttpNode) -> None:
    node.do("PUT", "/persistent/public/default/a%2Fb%20c")
    assert node.get("/persistent/public/default") == ["persistent://public/default/a/b c"]
    assert node.get("/persistent/public/default/a%2Fb%20c/stats")["msgInCounter"] == 0
    node.do("DELETE", "/persistent/public/default/a%2Fb%20c")


def test_missing_objects_are_answered_in_the_same_form(node: HttpNode) -> None:
    assert node.refused(404, "GET", "/nothing/here")
    assert node.refused(405, "DELETE", "/clusters")
    at = "/persistent/public/default/orders"
    assert "valid integer" in node.refused(400, "PUT", f"{at}/partitions", "many")


def test_a_body_that_is_too_large_is_not_read(node: HttpNode) -> None:
    async def endless() -> AsyncIterator[bytes]:
        while True:
            yield bytes(2**16)

    answer = node.ask(
        "POST",
        "/admin/v2/tenants/public",
        content=endless(),
        headers={"Content-Type": "application/json"},
    )
    assert answer.status_code == 413
    assert "1048576 bytes" in answer.json()["reason"]


def test_every_route_is_described(node: HttpNode) -> None:
    paths = node.ask("GET", "/openapi.json").json()["paths"]
    topic = "/admin/v2/persistent/{tenant}/{namespace}/{topic}"
    assert set(paths[topic]) == {"put", "delete"}
    names = {row["name"] for row in paths[f"{topic}/stats"]["get"]["parameters"]}
    assert names == {"tenant", "namespace", "topic"}
    for rows in paths.values():
        assert all(row["summary"] for row in rows.values())


def test_schemas_of_a_topic(node: HttpNode) -> None:
    at = "/schemas/public/default/orders"
    assert "does not exist" in node.refused(404, "GET", f"{at}/schema")
    node.topic()
    assert "no such schema" in node.refused(404, "GET", f"{at}/schema")
    record = '{"type":"record","name":"R","fields":[{"name":"a","type":"int"}]}'
    body = {"type": "AVRO", "schema": record, "properties": {"p": "q"}}
    assert node.ask("POST", f"/admin/v2{at}/schema", json=body).json() == {"version": 0}
    found = node.get(f"{at}/schema")
    assert (found["version"], found["type"], found["data"]) == (0, "AVRO", record)
    assert found["properties"] == {"p": "q"}
    assert node.get(f"{at}/schema/0") == found
    assert node.get(f"{at}/schemas") == {"getSchemaResponses": [found]}
    text = {"type": "STRING", "schema": ""}
    assert "not compatible" in node.refused(409, "POST", f"{at}/schema", text)
    answer = node.ask("POST", f"/admin/v2{at}/compatibility", json=text).json()
    assert answer["compatibility"] is False
    assert "schema type 'X' is unknown" in node.refused(
        412, "POST", f"{at}/schema", text | {"type": "X"}
    )
    assert node.ask("DELETE", f"/admin/v2{at}/schema").json() == {"version": 1}
    assert node.ask("POST", f"/admin/v2{at}/schema", json=text).json() == {"version": 2}


def test_metrics_of_many_topics_describe_each_family_once(node: HttpNode) -> None:
    names = [f"persistent://public/default/t{number}" for number in range(120)]
    for name in names:
        node.topic(name).subscription("s", SubscriptionType.SHARED, durable=True, start=0)
    lines = node.ask("GET", "/metrics").text.splitlines()
    described = [line for line in lines if line.startswith("#")]
    assert len(described) == len(set(described)) > 20
    for family in ("pulsar_storage_size", "pulsar_subscription_back_log"):
        at = lines.index(f"# TYPE {family} gauge")
        samples = lines[at + 1 : at + 1 + len(names)]
        assert {line.partition("{")[0] for line in samples} == {family}
        assert all(any(f'topic="{name}"' in line for line in samples) for name in names)
