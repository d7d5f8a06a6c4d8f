"""Runs over HTTP for tests: messages, and the end of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lithify.topics.topic import Topic
    from tests.http.node import HttpNode

AT = "/persistent/public/default/orders"
NAMESPACE = "/namespaces/public/default"


def fill(topic: Topic, messages: int, keys: int) -> None:
    for number in range(messages):
        topic.append(key=f"k{number % keys}", value=b"v%d" % number)


def finished(node: HttpNode, at: str = AT) -> dict[str, str]:
    """What a run in progress ends with."""
    while True:
        found: dict[str, str] = node.get(f"{at}/compaction")
        if found["status"] != "RUNNING":
            return found
