"""How long a node takes to start and to open topics: `python -m bench.starting WHAT DIRECTORY`.

    start DIRECTORY          starts a node and opens one of its topics; prints the seconds
    open DIRECTORY           opens every topic of a data directory; prints the seconds

For the row `many-topics` of `topics.py`. Loading the code does not count.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time

import uvicorn  # noqa: F401  (a node imports it when it starts, which is not to count)

from lithify.fs import MemoryFileSystem
from lithify.http.app import create_app
from lithify.node import server  # noqa: TC001  (for the same reason)
from lithify.node.node import Node
from lithify.node.settings import NodeSettings
from lithify.topics.subscriptions.subscription import SubscriptionType

MESSAGE = bytes(1024)


def start(directory: str) -> None:
    """From a process with its code loaded until a topic that was not used before is open."""
    _load_code()
    began_s = time.perf_counter()
    node = Node(NodeSettings(directory, pulsar_port=0, http_port=0))

    def ready(_: server.Addresses) -> None:
        node.topics.get(list(node.topics.definitions.current.topics)[-1])
        _print_and_exit(time.perf_counter() - began_s)

    asyncio.run(node.serve(stop=asyncio.Event(), ready=ready, make_app=create_app))


def open_all(directory: str) -> None:
    _load_code()
    node = Node(NodeSettings(directory))
    began_s = time.perf_counter()
    for name in node.topics.unopened():
        node.topics.get(name)
    _print_and_exit(time.perf_counter() - began_s)


def _load_code() -> None:
    """Compiled kernels are loaded when they are first used: by a topic in memory."""
    memory = MemoryFileSystem()
    for _ in range(2):
        with Node(NodeSettings("/data"), fs=memory) as node:
            topic = node.topics.get("t", create=True)
            topic.subscription("s", SubscriptionType.EXCLUSIVE, durable=True, start=0)
            topic.append(value=MESSAGE)


def _print_and_exit(seconds: float) -> None:
    print(seconds, flush=True)
    # Closing is not measured, and the data is read again after a kill just as well.
    os._exit(0)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["start", directory]:
            start(directory)
        case ["open", directory]:
            open_all(directory)
        case other:
            sys.exit(f"unknown: {other}")
