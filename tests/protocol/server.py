"""A broker in a process of its own: `server.py DIRECTORY PORT [SETTINGS]`, the last as JSON.

Prints its port once it listens. Logs go to standard error.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import structlog

from lithify.clock import SystemClock
from lithify.events import ignore_events
from lithify.fs import LocalFileSystem
from lithify.pulsar.broker import Broker
from lithify.pulsar.listener import Connection, listen
from lithify.settings import LogSettings
from lithify.topics.store import Topics, TopicSettings


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
    connections: set[Connection] = set()
    server = await listen(broker, "127.0.0.1", port, connections)
    port = server.sockets[0].getsockname()[1]
    broker.service_url = f"pulsar://127.0.0.1:{port}"
    print(port, flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    asyncio.run(
        serve(sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3]) if sys.argv[3:] else {})
    )
