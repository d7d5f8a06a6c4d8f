"""Requests on topics that are not open open them in threads: the event loop waits for no disk."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from lithify.clock import ManualClock
from lithify.events import ignore_events
from lithify.fs import MemoryFileSystem
from lithify.fs.trees import remove_tree
from lithify.http.app import create_app
from lithify.pulsar.broker import Broker
from lithify.topics.store import Topics, TopicSettings

if TYPE_CHECKING:
    from lithify.fs import File

TOPIC = "/admin/v2/persistent/public/default/parts"


class WatchedFileSystem(MemoryFileSystem):
    """Counts the files that each thread opens for writing, and those that it looks for."""

    def __init__(self) -> None:
        super().__init__()
        self.opened_by: list[int] = []
        self.looked_by: list[int] = []

    def exists(self, path: str) -> bool:
        self.looked_by.append(threading.get_ident())
        return super().exists(path)

    def open_append(self, path: str, **more: Any) -> File:
        self.opened_by.append(threading.get_ident())
        return super().open_append(path, **more)


def opened(fs: WatchedFileSystem) -> Topics:
    return Topics(
        fs,
        "data",
        settings=TopicSettings(),
        clock=ManualClock(),
        events=ignore_events,
        owner="test",
    )


def asked(topics: Topics, method: str, path: str) -> tuple[int, int]:
    """The status of the answer, and the thread of the event loop."""
    app = create_app(Broker(topics, name="n", version="v"), None)

    async def ask() -> tuple[int, int]:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://node") as client:
            answer = await client.request(method, path)
        return answer.status_code, threading.get_ident()

    return asyncio.run(ask())


PATHS = ("partitioned-stats", "partitioned-internalStats", "subscriptions")


@pytest.mark.parametrize("path", PATHS)
def test_partitions_are_not_opened_in_the_event_loop(path: str) -> None:
    fs = WatchedFileSystem()
    topics = opened(fs)
    topics.create_partitioned("persistent://public/default/parts", 5)
    fs.opened_by.clear()
    status, loop = asked(topics, "GET", f"{TOPIC}/{path}")
    assert status == 200
    assert fs.opened_by
    assert loop not in fs.opened_by
    topics.close()


def test_a_lost_topic_is_looked_for_and_deleted_in_a_thread() -> None:
    fs = WatchedFileSystem()
    topics = opened(fs)
    topics.create("parts").append(value=b"x")
    topics.close()
    remove_tree(fs, "data/topics/public/default/parts")
    fs.remove("data/definitions")
    topics = opened(fs)
    for status in (204, 404):
        fs.looked_by.clear()
        answer, loop = asked(topics, "DELETE", TOPIC)
        assert answer == status
        assert loop not in fs.looked_by
    assert topics.missing() == ()
    topics.close()
