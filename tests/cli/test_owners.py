"""Three `lithify serve` processes with real clients: each topic and store is served by its owner."""

from __future__ import annotations

import json
import signal
from typing import TYPE_CHECKING

import httpx
import pulsar

from tests.cli.cluster_members import Member, members, start_all
from tests.patience import PROCESS_S_MAX, wait_until

if TYPE_CHECKING:
    from pathlib import Path

TOPICS = [f"t{number}" for number in range(6)]


def owners_of(node: Member) -> dict[str, str]:
    """The topics and stores with their owners, as a node says."""
    shown = node.get("/catalog")
    return {str(each.get("name")): str(each) for each in shown.get("objects", [])}


def lookup(node: Member, topic: str) -> str:
    found = node.get(f"/lookup/v2/topic/persistent/public/default/{topic}")
    return str(found["brokerUrl"])


def client_of(node: Member) -> pulsar.Client:
    url = node.get("/admin/v2/clusters/lithify")["brokerServiceUrl"]
    logger = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    return pulsar.Client(url, logger=logger)


def test_topics_and_stores_are_used_at_any_node_and_served_by_one(tmp_path: Path) -> None:
    with members(tmp_path, 3) as nodes:
        start_all(nodes)
        urls = {node.get("/admin/v2/clusters/lithify")["brokerServiceUrl"] for node in nodes}
        for number, topic in enumerate(TOPICS):
            nodes[number % 3].run("topics", "create", topic)
        nodes[0].run("topics", "create", "parts", "--partitions", "3")

        # The topics are spread, and all nodes say alike where they are.
        for topic in (*TOPICS, "parts-partition-1"):
            assert len({lookup(node, topic) for node in nodes}) == 1
        assert {lookup(nodes[0], topic) for topic in TOPICS} == urls

        # Real clients of any node; `auto` is created by the first use.
        clients = [client_of(node) for node in nodes]
        for number, topic in enumerate((*TOPICS, "parts", "auto")):
            consumer = clients[number % 3].subscribe(topic, "s")
            producer = clients[(number + 1) % 3].create_producer(topic)
            producer.send(topic.encode())
            received = consumer.receive(timeout_millis=int(PROCESS_S_MAX * 1000))
            assert received.data() == topic.encode()
            consumer.acknowledge(received)
        for client in clients:
            client.close()
        directories = [
            {each.name for each in (tmp_path / node.name / "topics/public/default").glob("*")}
            for node in nodes
        ]
        for topic in TOPICS:
            assert sum(topic in each for each in directories) == 1

        # HTTP redirects, and the command line follows.
        for topic in TOPICS:
            answers = [
                httpx.get(f"{node.url}/admin/v2/persistent/public/default/{topic}/stats")
                for node in nodes
            ]
            assert sorted(answer.status_code for answer in answers) == [200, 307, 307]
            for node in nodes:
                assert topic in node.run("topics", "tail", topic)
        nodes[1].run("blobs", "create", "photos", "--capacity", "4MiB", "--segment", "1MiB")
        put = httpx.post(f"{nodes[1].url}/blobs/photos", content=b"cheese")
        blob = put.json()["id"] if put.is_success else ""
        assert blob, put.text
        for node in nodes:
            url = f"{node.url}/blobs/photos/{blob}"
            assert httpx.get(url, follow_redirects=True).content == b"cheese"
            assert (httpx.get(url).status_code == 307) == (node is not nodes[1])
            assert "photos" in json.dumps(json.loads(node.run("blobs", "list", "--json")))

        # Deleted at any node, and gone at all.
        for number, topic in enumerate(TOPICS):
            nodes[(number + 2) % 3].run("topics", "delete", topic)
        nodes[2].run("blobs", "drop", "photos")
        for node in nodes:
            left = node.run("topics", "list")
            assert not any(topic in left.split() for topic in TOPICS)
            assert "auto" in left
        for topic in TOPICS:
            assert not list(tmp_path.glob(f"n*/topics/public/default/{topic}"))

        # After a restart of all, the rest is where it was.
        for node in nodes:
            assert node.end(signal.SIGTERM) == 0
        start_all(nodes)
        wait_until(lambda: all(node.get("/admin/v2/brokers/health") for node in nodes))
        for node in nodes:
            assert "auto" in node.run("topics", "tail", "auto")
