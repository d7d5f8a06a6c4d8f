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
from lithify.http.app import create_app
from lithify.pulsar.broker import Broker
from lithify.topics.store import Topics, TopicSettings

if TYPE_CHECKING:
    from lithify.fs import File

TOPIC = "/admin/v2/persistent/public/default/parts"


class WatchedFileSystem(MemoryFileSystem):
    """Counts the files that each thread opens for writing."""

    def __init__(self) -> None:
        super().__init__()
        self.opened_by: list[int] = []

    def open_append(self, path: str, **more: Any) -> File:
        self.opened_by.append(threading.get_ident())
        return super().open_append(path, **more)


PATHS = ("partitioned-stats", "partitioned-internalStats", "subscriptions")


@pytest.mark.parametrize("path", PATHS)
def test_partitions_are_not_opened_in_the_event_loop(path: str) -> None:
    fs = WatchedFileSystem()
    topics = Topics(
        fs,
        "data",
        settings=TopicSettings(),
        clock=ManualClock(),
        events=ignore_events,
        owner="test",
    )
    topics.create_partitioned("persistent://public/default/parts", 5)
    app = create_app(Broker(topics, name="n", version="v"), None)
    fs.opened_by.clear()

    async def ask() -> tuple[int, int]:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://node") as client:
            answer = await client.get(f"{TOPIC}/{path}")
        return answer.status_code, threading.get_ident()

    status, loop = asyncio.run(ask())
    assert status == 200
    assert fs.opened_by
    assert loop not in fs.opened_by
    topics.close()
