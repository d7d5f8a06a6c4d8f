"""Requests on topics that are not open open them in threads: the event loop waits for no disk."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from lithify.clock import ManualClock
from lithify.events import ignore_events
from lithify.fs import MemoryFileSystem
from lithify.fs.remove_tree import remove_tree
from lithify.http.app import create_app
from lithify.pulsar.broker import Broker
from lithify.testing.faulty_fs import Fault, FaultyFileSystem
from lithify.topics.definitions.definitions import AlreadyDefined
from lithify.topics.topics import Topics, TopicSettings
from tests.unit.log.helpers import PATIENCE_S, Gate, Hook
from tests.unit.topics.test_topics import open_topics, stopped_at

if TYPE_CHECKING:
    from collections.abc import Callable

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


def test_a_lost_topic_is_found_and_deleted_in_a_thread() -> None:
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


SPACE = "/admin/v2/persistent/public/default"
TAKEN_OUT = (
    ("DELETE", f"{SPACE}/slow"),
    ("DELETE", f"{SPACE}/slow?force=true"),
    ("PUT", f"{SPACE}/slow/unload"),
    ("PUT", "/admin/v2/namespaces/public/default/unload"),
)


@pytest.mark.parametrize(("method", "path"), TAKEN_OUT)
def test_the_event_loop_does_not_wait_for_a_thread_that_opens_a_topic(
    method: str, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    topics, gate = stopped_at("slow", "other")
    app = create_app(Broker(topics, name="n", version="v"), None)

    async def ask() -> int:
        tried = asyncio.Event()

        def noted(call: Callable[..., Any]) -> Callable[..., Any]:
            def noted_call(*args: Any, **more: Any) -> Any:
                tried.set()
                return call(*args, **more)

            return noted_call

        for name in ("deleting", "unloading"):
            monkeypatch.setattr(topics, name, noted(getattr(topics, name)))
        opened = asyncio.create_task(asyncio.to_thread(topics.get, "slow"))
        await asyncio.to_thread(gate.wait_until_reached)
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://node") as client:
            request = asyncio.create_task(client.request(method, path))
            await tried.wait()
            assert not request.done()
            # The loop has its turn while the topic is not open yet.
            gate.open()
            await opened
            return (await request).status_code

    assert asyncio.run(ask()) == 204
    assert topics.opened() == {}
    assert topics.exists("slow") == (method != "DELETE")
    topics.close()


def test_topics_that_a_thread_has_claimed_are_not_closed_as_idle() -> None:
    gate = Gate()
    fs = FaultyFileSystem(MemoryFileSystem(), [], Hook(gate.stop))
    topics = open_topics(fs)
    broker = Broker(topics, name="n", version="v")
    for name in ("t-partition-0", "idle"):
        topics.create(name)
    fs.add(Fault("exists", "*/topics", kind="SLOW"))
    with ThreadPoolExecutor(1) as pool:
        created = pool.submit(topics.create_partitioned, "t", 1)
        gate.wait_until_reached()
        broker.release_idle(0, 10, backlogs=True)()
        assert [name.local for name in topics.opened()] == ["t-partition-0"]
        gate.open()
        with pytest.raises(AlreadyDefined):
            created.result(PATIENCE_S)
    broker.release_idle(0, 10, backlogs=True)()
    assert topics.opened() == {}
    topics.close()
