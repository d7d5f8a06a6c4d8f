"""A broker in a process of its own: `server.py DIRECTORY PORT [SETTINGS]`, the last as JSON.

Prints `listening` once it does. Logs go to standard error. With `drops` among the settings it hangs
up this many times, each time on any of its connections; with `http` it can be asked at `http_port`,
and compacts a topic on `POST /compact/TOPIC`, answered when it is done.
"""

from __future__ import annotations

import asyncio
import json
import random
import socket
import sys
from typing import TYPE_CHECKING, Any

import structlog

from lithify.clock import SystemClock
from lithify.errors import RunRefused
from lithify.events import ignore_events
from lithify.fs import LocalFileSystem
from lithify.pulsar.broker import Broker
from lithify.pulsar.connection_limits import ConnectionLimits
from lithify.pulsar.listener import listen
from lithify.settings import LogSettings
from lithify.topics.topics import Topics, TopicSettings

if TYPE_CHECKING:
    from lithify.pulsar.connection import ClientConnection

DROP_SECONDS = 0.1
TASKS: set[asyncio.Task[None]] = set()


async def drop(connections: set[ClientConnection], count: int) -> None:
    rng = random.Random(7)
    for _ in range(count):
        await asyncio.sleep(DROP_SECONDS)
        while not connections:
            await asyncio.sleep(DROP_SECONDS)
        rng.choice(list(connections)).abort()
        print("dropped a connection", file=sys.stderr, flush=True)


async def serve_http(broker: Broker, port: int) -> None:
    # Most brokers of the tests are not asked, and these take a while to import.
    import uvicorn  # noqa: PLC0415

    from lithify.http import create_app  # noqa: PLC0415

    listening = socket.create_server(("127.0.0.1", port))
    app = create_app(broker)

    @app.post("/compact/{topic}")
    async def compact(topic: str) -> None:
        found = broker.topics.get(topic)
        while True:
            try:
                await asyncio.to_thread(found.service.compact, "test")
            except RunRefused:
                # Brokers of other tests take turns with the disk.
                await asyncio.sleep(0.02)
            else:
                return

    http = uvicorn.Server(uvicorn.Config(app, log_config=None))
    TASKS.add(asyncio.create_task(http.serve([listening])))


async def serve(directory: str, port: int, settings: dict[str, Any]) -> None:
    log = LogSettings(segment_bytes_max=settings.get("segment_bytes_max", 256 * 2**20))
    topics = Topics(
        LocalFileSystem(),
        directory,
        settings=TopicSettings(
            log=log,
            auto_create=settings.get("auto_create", True),
            deduplication=settings.get("deduplication", False),
        ),
        clock=SystemClock(),
        events=ignore_events,
        owner="protocol tests",
    )
    for name, partitions in settings.get("topics", {}).items():
        if not topics.exists(name):
            if partitions:
                topics.create_partitioned(name, partitions)
            else:
                topics.create(name)
    broker = Broker(topics, name="tests", version="Lithify tests")
    broker.limits = ConnectionLimits(**settings.get("limits", {}))
    connections: set[ClientConnection] = set()
    await listen(broker, "127.0.0.1", port, connections)
    broker.service_url = f"pulsar://127.0.0.1:{port}"
    if settings.get("http"):
        await serve_http(broker, settings["http_port"])
    print("listening", flush=True)
    await drop(connections, settings.get("drops", 0))
    await asyncio.Event().wait()


if __name__ == "__main__":
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    asyncio.run(
        serve(sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3]) if sys.argv[3:] else {})
    )
