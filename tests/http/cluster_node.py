"""A node with its cluster, asked over HTTP without a socket."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Self

import httpx

from lithify.http import create_app
from lithify.node.node import Node
from lithify.node.settings import NodeSettings
from lithify.pulsar.broker import Broker
from tests.patience import PROCESS_S_MAX

if TYPE_CHECKING:
    from pathlib import Path

    from lithify.clock import Clock


class ClusterNode:
    """A cluster of one, with the settings given."""

    def __init__(self, directory: Path, *, clock: Clock | None = None, **settings: Any) -> None:
        given = NodeSettings(str(directory / "data"), node="n1", **settings)
        self.node = Node(given, clock=clock)
        self.broker = Broker(self.node.topics, name="node", version="Lithify 0")
        self.broker.service_url = "pulsar://127.0.0.1:6650"
        self.app = create_app(self.broker, self.node.blobs, member=self.node.cluster)
        self.loop = asyncio.new_event_loop()
        transport = httpx.ASGITransport(self.app)
        self._client = httpx.AsyncClient(transport=transport, base_url="http://node:8080")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.loop.run_until_complete(self._client.aclose())
        self.loop.run_until_complete(self.loop.shutdown_default_executor())
        self.loop.close()
        self.node.close()

    def raise_low_watermark(self) -> None:
        """To what the clock permits now; the node does it by itself once in a while."""
        tables = self.node.cluster.tables
        assert tables is not None
        self.node.cluster.ask(tables.low_watermark.update)

    def ask(self, method: str, path: str, **more: Any) -> httpx.Response:
        """Any request."""
        asked = self._client.request(method, path, **more)
        return self.loop.run_until_complete(asyncio.wait_for(asked, PROCESS_S_MAX))

    def call(self, method: str, path: str, **more: Any) -> Any:
        """The JSON of an answer that must be good; None if it is empty."""
        answer = self.ask(method, path, **more)
        assert answer.is_success, answer.text
        return answer.json() if answer.content else None

    def refused(self, status: int, method: str, path: str, **more: Any) -> tuple[str, str]:
        """(class of the error, reason) of a request that must be refused."""
        answer = self.ask(method, path, **more)
        assert answer.status_code == status, answer.text
        return answer.headers.get("x-lithify-error", ""), str(answer.json()["reason"])
