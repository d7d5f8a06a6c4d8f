"""The topics that a node has lost, because its data directory is an older copy or a new one.

    list_lost_topics(fs, "data", definitions.current, copied, events)

A node that has lost its disk, or returns with an older copy of it, leaves the cluster and joins it
again. The catalog still says which topics it owns, but its inventory does not have those that got
their log later: they would be served without their messages. So they are added to the inventory,
which makes them missing (`topics/directories/inventory.py`).

The copy of the definitions in the directory is as old as the inventory. What it names was known
when the inventory was written, so the inventory is right about it. A topic that it does not name,
or that was created at another time, is lost, or was never used; nothing in the directory can say
which.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lithify.logger import get_logger
from lithify.topics.definitions.topic_names import TopicName
from lithify.topics.directories.inventory import INVENTORY, Inventory

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lithify.events import EventSink
    from lithify.fs import FileSystem
    from lithify.topics.definitions.definitions import Definitions

__all__ = ["list_lost_topics"]

log = get_logger("lithify.node")


def list_lost_topics(
    fs: FileSystem,
    directory: str,
    current: Definitions,
    copied: Definitions | None,
    events: EventSink,
) -> None:
    """Add topics of this node that its directory does not know to the inventory, durably."""
    known = set() if copied is None else set(_logs(copied))
    lost = [name for name, created_ms in _logs(current) if (name, created_ms) not in known]
    if lost:
        Inventory(fs, f"{directory}/{INVENTORY}", events).add(lost)
        log.warning(
            "the data directory is new or an older copy: topics that it does not have are missing",
            topics=len(lost),
            first=str(lost[0]),
        )


def _logs(definitions: Definitions) -> Iterator[tuple[TopicName, int]]:
    """The topics and partitions of the node, each with the time at which it was created."""
    for name, topic in definitions.topics.items():
        if set(topic.owners) <= {definitions.node}:
            for part in topic.logs_of(TopicName.parse(name)):
                yield part, topic.created_ms
