"""Unused topics are opened too, while the node serves."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import structlog

from lithify.clock import ManualClock
from lithify.fs import LocalFileSystem, MemoryFileSystem
from lithify.node.node import Node
from lithify.node.open_topics import STEP_TOPICS, open_rest
from lithify.node.settings import NodeSettings
from lithify.testing.faulty_fs import Fault, FaultyFileSystem
from lithify.topics.subscriptions.cursor_changes import AckedUpTo
from lithify.topics.subscriptions.subscription import SubscriptionType
from tests.patience import PROCESS_S_MAX

if TYPE_CHECKING:
    from pathlib import Path

    from lithify.fs import FileSystem


def stored(count: int) -> MemoryFileSystem:
    """The disk of a node with this many topics, a message in each."""
    memory = MemoryFileSystem()
    with Node(NodeSettings("/data"), fs=memory) as node:
        for number in range(count):
            node.topics.create(f"t{number}").append(value=b"x")
    return memory


def opened(fs: FileSystem, topics_max: int = 1000, *, ended: bool = False) -> list[str]:
    """The topics that a node opens behind the back of its clients."""

    async def story(node: Node) -> None:
        event = asyncio.Event()
        if ended:
            event.set()
        await open_rest(node.topics, event, topics_max)

    with Node(NodeSettings("/data"), fs=fs) as node:
        asyncio.run(story(node))
        return sorted(name.local for name in node.topics.opened())


def test_all_are_opened() -> None:
    count = 2 * STEP_TOPICS + 1
    assert opened(stored(count)) == sorted(f"t{number}" for number in range(count))


def test_a_topic_that_cannot_be_opened_is_named_and_others_open() -> None:
    fs = FaultyFileSystem(stored(3), [Fault("open_append", "*/t1/log/*", count=None)])
    with structlog.testing.capture_logs() as lines:
        assert opened(fs) == ["t0", "t2"]
    assert [line["topic"] for line in lines if "topic" in line] == [
        "persistent://public/default/t1"
    ]


def test_a_node_that_stops_does_not_open_all_of_them_first() -> None:
    assert len(opened(stored(2 * STEP_TOPICS), ended=True)) == STEP_TOPICS


def test_with_too_few_descriptors_the_rest_is_left_until_it_is_used() -> None:
    with structlog.testing.capture_logs() as lines:
        found = opened(stored(3 * STEP_TOPICS), topics_max=STEP_TOPICS + 1)
    assert len(found) == 2 * STEP_TOPICS, "whole steps are made"
    told = [(line["topics"], line["open_max"]) for line in lines if "open_max" in line]
    assert told == [(STEP_TOPICS, 11)]


def test_retention_applies_to_a_topic_unused_since_the_start(tmp_path: Path) -> None:
    clock = ManualClock()
    settings = NodeSettings(
        str(tmp_path / "data"), pulsar_port=0, sync_interval_ms=1, retention_ms=1000
    )
    with Node(settings, clock=clock) as node:
        topic = node.topics.create("old")
        subscription = topic.subscription("s", SubscriptionType.EXCLUSIVE, durable=True, start=0)
        topic.append(value=b"old")
        topic.log.roll()
        topic.acknowledge(subscription, AckedUpTo(topic.last_position))
    clock.advance(3600)

    fs = FaultyFileSystem(LocalFileSystem(), record=True)

    async def story() -> None:
        stop, ready = asyncio.Event(), asyncio.Event()
        with Node(settings, fs=fs, clock=clock) as node:
            serving = asyncio.create_task(node.serve(stop=stop, ready=lambda _: ready.set()))
            await ready.wait()
            while not any(line.startswith("remove ") for line in fs.trace):
                # Policies are checked by the clock; the test's own time limit is the loop's.
                clock.advance(1)
                await asyncio.sleep(0.001)
            stop.set()
            await serving

    asyncio.run(asyncio.wait_for(story(), PROCESS_S_MAX))
