"""A node that is asked over HTTP without a socket: topics in memory, and a client of the app."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Self

import httpx

from lithify.blobs.settings import BlobSettings
from lithify.blobs.stores import BlobStores
from lithify.clock import ManualClock
from lithify.events import ignore_events
from lithify.fs import MemoryFileSystem
from lithify.http import create_app
from lithify.pulsar.broker import Broker
from lithify.settings import LogSettings
from lithify.topics.topics import Topics, TopicSettings

if TYPE_CHECKING:
    from lithify.topics.topic import Topic

ORDERS = "persistent://public/default/orders"


class HttpNode:
    """Everything but the sockets."""

    def __init__(self, **settings: Any) -> None:
        self.clock = ManualClock()
        self.loop = asyncio.new_event_loop()
        self.fs = MemoryFileSystem()
        self.topics = Topics(
            self.fs,
            "data",
            settings=TopicSettings(log=LogSettings(segment_bytes_max=1024), **settings),
            clock=self.clock,
            events=ignore_events,
            owner="test",
        )
        self.broker = Broker(self.topics, name="node", version="Lithify 0")
        self.broker.service_url = "pulsar://127.0.0.1:6650"
        self.blobs = BlobStores(
            self.fs,
            "data",
            self.topics.definitions,
            settings=BlobSettings(),
            clock=self.clock,
            events=ignore_events,
        )
        self.app = create_app(self.broker, self.blobs)
        transport = httpx.ASGITransport(self.app)
        self._client = httpx.AsyncClient(transport=transport, base_url="http://node:8080")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.loop.run_until_complete(self._client.aclose())
        self.loop.close()
        self.blobs.close()
        self.topics.close()

    def ask(self, method: str, path: str, **more: Any) -> httpx.Response:
        """Any request."""
        return self.loop.run_until_complete(self.asks(method, path, **more))

    async def asks(self, method: str, path: str, **more: Any) -> httpx.Response:
        """The same, while another one is in flight."""
        return await self._client.request(method, path, **more)

    def get(self, path: str) -> Any:
        """What a path below /admin/v2 says; it must be there."""
        answer = self.ask("GET", f"/admin/v2{path}")
        assert answer.status_code == 200, answer.text
        return answer.json()

    def do(self, method: str, path: str, body: object = None) -> None:
        """A change below /admin/v2 that must work."""
        answer = self.ask(method, f"/admin/v2{path}", json=body)
        assert answer.status_code == 204, answer.text
        assert answer.content == b""

    def refused(self, status: int, method: str, path: str, body: object = None) -> str:
        """Why a request below /admin/v2 is refused."""
        answer = self.ask(method, f"/admin/v2{path}", json=body)
        assert answer.status_code == status, answer.text
        assert list(answer.json()) == ["reason"]
        return str(answer.json()["reason"])

    def topic(self, name: str = ORDERS, messages: int = 0) -> Topic:
        """A topic with this many messages, a second apart."""
        topic = self.topics.get(name, create=True)
        for number in range(messages):
            topic.append(key=f"k{number}", value=b"v%d" % number)
            self.clock.advance(1)
        return topic
