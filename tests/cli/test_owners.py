"""Three `lithify serve` processes with real clients: owners serve topics and blob stores."""

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

NAMES = ("n1", "n2", "n3")
TOPICS = [f"t{number}" for number in range(6)]


def lookup(node: Member, topic: str) -> str:
    found = node.get(f"/lookup/v2/topic/persistent/public/default/{topic}")
    return str(found["brokerUrl"])


def broker_of(node: Member) -> str:
    (cluster,) = node.get("/admin/v2/clusters")
    return str(node.get(f"/admin/v2/clusters/{cluster}")["brokerServiceUrl"])


def client_of(node: Member) -> pulsar.Client:
    logger = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    return pulsar.Client(broker_of(node), logger=logger)


def use_with_clients(nodes: list[Member], topics: tuple[str, ...]) -> None:
    """Produce at one node what is consumed at the next one."""
    clients = [client_of(node) for node in nodes]
    for number, topic in enumerate(topics):
        consumer = clients[number % 3].subscribe(topic, "s")
        producer = clients[(number + 1) % 3].create_producer(topic)
        producer.send(topic.encode())
        received = consumer.receive(timeout_millis=int(PROCESS_S_MAX * 1000))
        assert received.data() == topic.encode()
        consumer.acknowledge(received)
    for client in clients:
        client.close()


def directories_of(directory: Path, topic: str) -> list[Path]:
    return list(directory.glob(f"n*/topics/public/default/{topic}"))


def test_a_topic_is_used_at_any_node_and_served_by_its_owner(tmp_path: Path) -> None:
    with members(tmp_path, 3) as nodes:
        start_all(nodes)
        urls = set(map(broker_of, nodes))
        for number, topic in enumerate(TOPICS):
            nodes[number % 3].run("topics", "create", topic)
        nodes[0].run("topics", "create", "parts", "--partitions", "3")
        for topic in (*TOPICS, "parts-partition-1"):
            assert len({lookup(node, topic) for node in nodes}) == 1
        # They are spread.
        assert {lookup(nodes[0], topic) for topic in TOPICS} == urls

        # A consumer creates a topic by its first use, also if it is placed on another node.
        first = [f"first{number}" for number in range(3)]
        client = client_of(nodes[0])
        for topic in first:
            client.subscribe(topic, "s")
        client.close()
        assert {lookup(nodes[0], topic) for topic in first} != {broker_of(nodes[0])}

        # The last one is created by its first use.
        use_with_clients(nodes, (*TOPICS, "parts", "auto"))
        for topic in (*TOPICS, "auto"):
            assert len(directories_of(tmp_path, topic)) == 1
        for topic in TOPICS:
            path = f"/admin/v2/persistent/public/default/{topic}/stats"
            answers = [httpx.get(f"{node.url}{path}") for node in nodes]
            assert sorted(answer.status_code for answer in answers) == [200, 307, 307]
            for node in nodes:
                assert topic in node.run("topics", "tail", topic)

        for number, topic in enumerate(TOPICS):
            nodes[(number + 2) % 3].run("topics", "delete", topic)
        for node in nodes:
            left = node.run("topics", "list").split()
            assert not set(TOPICS) & set(left)
        for topic in TOPICS:
            assert not directories_of(tmp_path, topic)

        for node in nodes:
            assert node.end(signal.SIGTERM) == 0
        start_all(nodes)
        # Until each knows where the others serve.
        wait_until(lambda: len({broker for node in nodes for broker in known_to(node)}) == 1)
        for node in nodes:
            assert "auto" in node.run("topics", "tail", "auto")


def known_to(node: Member) -> list[str]:
    answer = httpx.get(f"{node.url}/lookup/v2/topic/persistent/public/default/auto")
    url = answer.json().get("brokerUrl", "")
    return [url or node.name]


def test_a_blob_store_is_used_at_any_node_and_served_by_its_owner(tmp_path: Path) -> None:
    with members(tmp_path, 3) as nodes:
        start_all(nodes)
        shape = ("--capacity", "4MiB", "--segment", "1MiB")
        for name in ("photos", "films", "songs"):
            nodes[1].run("blobs", "create", name, *shape)
        # They are spread, whichever node was asked.
        assert {path.parent.parent.name for path in tmp_path.glob("n*/blobs/*")} == set(NAMES)
        owner = owner_of(tmp_path, "photos")
        for number, node in enumerate(nodes):
            content = bytes([number]) * 2**19
            file = tmp_path / "content"
            file.write_bytes(content)
            blobs = [
                node.run("blobs", "put", "photos", str(file)),
                node.run("blobs", "put", "photos", stdin=content),
            ]
            for blob in blobs:
                for other in nodes:
                    url = f"{other.url}/blobs/photos/{blob.strip()}"
                    assert httpx.get(url, follow_redirects=True).content == content
                    assert (httpx.get(url).status_code == 307) == (other.name != owner)
            shown = json.loads(node.run("blobs", "list", "--json"))
            at = {row["store"]: row.get("node") for row in shown}
            assert at["photos"] == (None if node.name == owner else owner)
        other = next(node for node in nodes if node.name != owner)
        assert f"on {owner}" in other.run("blobs", "list")
        again = {"capacity_bytes": 2**22, "segment_bytes": 2**20}
        for node in nodes:
            taken = httpx.put(f"{node.url}/blobs/photos", json=again, follow_redirects=True)
            assert taken.status_code == 409
            nowhere = httpx.put(f"{node.url}/blobs/x?owner=n9", json=again)
            assert nowhere.status_code == 400
        given = httpx.put(f"{nodes[0].url}/blobs/given?owner=n3", json=again, follow_redirects=True)
        assert given.is_success
        assert owner_of(tmp_path, "given") == "n3"
        for name in ("photos", "films", "songs", "given"):
            other.run("blobs", "drop", name)
        for node in nodes:
            assert json.loads(node.run("blobs", "list", "--json")) == []
        assert not list(tmp_path.glob("n*/blobs/photos"))


def owner_of(directory: Path, store: str) -> str:
    """The only node with a directory of the store."""
    [path] = directory.glob(f"n*/blobs/{store}")
    return path.parent.parent.name
