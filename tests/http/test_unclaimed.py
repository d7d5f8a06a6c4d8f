"""Unclaimed data over HTTP: listed, adopted, in the way of new topics and stores."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lithify.topics.definitions.topic_names import TopicName
from tests.http.node import HttpNode

if TYPE_CHECKING:
    from lithify.topics.definitions.definitions import Definitions

TOPICS = "/persistent/public/default"


def without(definitions: Definitions) -> Definitions:
    """As if the definitions were older than the directories."""
    for name in ("orders", "parts"):
        definitions = definitions.without_topic(TopicName.parse(name))
    return definitions.without_store("photos")


def test_unclaimed_directories_are_listed_adopted_and_not_replaced() -> None:
    with HttpNode() as node:
        node.topics.create("orders").append(value=b"paid")
        node.topics.create_partitioned("parts", 1)
        node.topics.get("parts-partition-0").append(value=b"x")
        shape = {"capacity_bytes": 2**22, "segment_bytes": 2**20}
        node.blobs.create("photos", capacity_bytes=2**22, segment_bytes=2**20)
        node.topics.unloading(list(node.topics.opened()))()
        node.topics.definitions.change(without)
        found = node.get("/unclaimed")
        assert [row["topic"].rpartition("/")[2] for row in found["topics"]] == ["orders", "parts"]
        assert [row["store"] for row in found["stores"]] == ["photos"]
        assert "lithify topics adopt" in node.refused(409, "PUT", f"{TOPICS}/orders")
        assert "lithify topics adopt" in node.refused(409, "PUT", f"{TOPICS}/parts/partitions", 2)
        assert node.ask("PUT", "/blobs/photos", json=shape).status_code == 409
        for name in ("orders", "parts"):
            node.do("POST", "/unclaimed/topics", {"topic": name})
        node.refused(409, "POST", "/unclaimed/topics", {"topic": "orders"})
        node.refused(404, "POST", "/unclaimed/topics", {"topic": "nothing"})
        node.refused(404, "POST", "/unclaimed/stores", {"store": "nothing"})
        node.do("POST", "/unclaimed/stores", {"store": "photos"})
        node.refused(409, "POST", "/unclaimed/stores", {"store": "photos"})
        assert node.get("/unclaimed") == {"topics": [], "stores": []}
        assert node.get(f"{TOPICS}/parts/partitions")["partitions"] == 1
        assert [message.value for message in node.topics.get("orders").read()] == [b"paid"]
        assert node.ask("GET", "/blobs/photos").status_code == 200
