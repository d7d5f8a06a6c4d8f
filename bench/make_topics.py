"""Make many topics: `python -m bench.make_topics DIRECTORY TOPICS SEGMENTS`.

They are all alike: one is written, the others are copies of its files. Also run with the sources of
an earlier version (`earlier.py`), so it uses only what that has.
"""

from __future__ import annotations

import os
import shutil
import sys
from typing import TYPE_CHECKING

import lithify
from lithify.fs import LocalFileSystem
from lithify.topics.definitions.definitions import TopicDefinition
from lithify.topics.definitions.topic_names import TopicName
from lithify.topics.subscriptions.subscription import SubscriptionType

if TYPE_CHECKING:
    from lithify.node.node import Node
    from lithify.topics.definitions.definitions import Definitions

__all__ = ["define_topics", "make_topics"]


def define_topics(node: Node, count: int) -> list[TopicName]:
    """Define the topics `t0`, `t1`, …, as one change."""
    names = [TopicName.parse(f"t{number}") for number in range(count)]

    def define(definitions: Definitions) -> Definitions:
        for name in names:
            if str(name) not in definitions.topics:
                definitions = definitions.with_topic(name, TopicDefinition(0, 0))
        return definitions

    node.topics.definitions.change(define)
    return names


def make_topics(data: str, count: int, segments: int) -> None:
    """Topics with as many sealed segments, in a new data directory."""
    with lithify.open(data) as node:
        topic = node.topics.create("t0")
        topic.subscription("s", SubscriptionType.EXCLUSIVE, durable=True, start=0)
        for _ in range(segments):
            topic.append(value=b"sediment")
            topic.log.roll()
        first, *others = define_topics(node, count)
        definitions = node.topics.definitions.current
    for name in others:
        directory = f"{data}/topics/{name.path}"
        shutil.copytree(f"{data}/topics/{first.path}", directory)
        if os.path.exists(f"{directory}/OBJECT"):
            # An earlier version has no such file.
            from lithify.log.object_file import write_object  # noqa: PLC0415

            identity = definitions.identity(name)
            assert identity is not None
            write_object(LocalFileSystem(), directory, identity)


if __name__ == "__main__":
    make_topics(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
