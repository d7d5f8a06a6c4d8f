"""A broker and its HTTP side in one process: prints both ports and serves until its input ends."""

from __future__ import annotations

import asyncio
import socket
import sys
from typing import TYPE_CHECKING

import uvicorn

from lithify.clock import SystemClock
from lithify.events import ignore_events
from lithify.fs import LocalFileSystem
from lithify.http import create_app
from lithify.pulsar.broker import Broker
from lithify.pulsar.listener import listen
from lithify.topics.topics import Topics, TopicSettings

if TYPE_CHECKING:
    from lithify.pulsar.connection import ClientConnection


async def main(directory: str) -> None:
    topics = Topics(
        LocalFileSystem(),
        directory,
        settings=TopicSettings(),
        clock=SystemClock(),
        events=ignore_events,
        owner="test",
    )
    broker = Broker(topics, name="node", version="Lithify 0")
    connections: set[ClientConnection] = set()
    server = await listen(broker, "127.0.0.1", 0, connections)
    port = server.sockets[0].getsockname()[1]
    broker.service_url = f"pulsar://127.0.0.1:{port}"
    with socket.create_server(("127.0.0.1", 0)) as listening:
        config = uvicorn.Config(create_app(broker), log_config=None)
        http = uvicorn.Server(config)
        serving = asyncio.create_task(http.serve([listening]))
        print(port, listening.getsockname()[1], flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
        http.should_exit = True
        await serving
    for connection in list(connections):
        connection.abort()
    server.close()
    topics.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
