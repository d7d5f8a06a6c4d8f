"""Three nodes that serve as a cluster, each a `lithify serve` of its own, with a table.

Its zone has one partition and three replicas, so that one Raft group has all rows, as etcd has.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
import urllib.request
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from bench.raft_client import free_port
from lithify.errors import LithifyError
from lithify.raft.client.client import RaftClient
from lithify.raft.net.client_operations import Address, ClientOperation
from lithify.tables.client import TableClient

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["TABLE", "table_members"]

TABLE = "kv"
STARTED_S = 60.0
AGAIN_S = 0.2
_DEFINITION = {
    "name": TABLE,
    "zone": "rows",
    "columns": [{"name": "k", "type": "string"}, {"name": "v", "type": "string"}],
    "key": ["k"],
}
_ZONE = "[zones.rows]\npartitions = 1\nreplicas = 3\n"


@contextmanager
def table_members(directory: str) -> Iterator[Address]:
    """The address of the node that leads the partition of the table, until the block ends."""
    book = {f"n{number}": Address("127.0.0.1", free_port()) for number in (1, 2, 3)}
    with ExitStack() as stack:
        processes = [
            stack.enter_context(_process(name, f"{directory}/{name}", book)) for name in book
        ]
        urls = [_addresses(process)["http"] for process in processes]
        _call(f"{urls[0]}/catalog/apply", _ZONE.encode(), "application/toml")
        _call(f"{urls[0]}/tables", json.dumps(_DEFINITION).encode(), "application/json")
        zone = _zone_of_table(urls[0])
        yield book[asyncio.run(_leader(list(book.values()), f"zone-{zone}-0"))]


@contextmanager
def _process(name: str, data: str, book: dict[str, Address]) -> Iterator[subprocess.Popen[str]]:
    options = ["--data", data, "--node", name, "--cluster-port", str(book[name].port)]
    options += ["--pulsar-port", "0", "--http-port", "0"]
    for peer, at in book.items():
        options += ["--peer", f"{peer}={at}"]
    environment = {**os.environ, "LITHIFY_LOG_LEVEL": "warning"}
    command = [sys.executable, "-m", "lithify", "serve", *options]
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        try:
            yield process
        finally:
            process.terminate()


def _addresses(process: subprocess.Popen[str]) -> dict[str, str]:
    assert process.stdout is not None
    return dict(process.stdout.readline().split() for _ in range(3))


def _call(url: str, body: bytes, content_type: str) -> None:
    headers = {"content-type": content_type}
    with urllib.request.urlopen(urllib.request.Request(url, body, headers)):
        pass


def _zone_of_table(url: str) -> int:
    """The id of the zone; the table is active on each node when it is created."""
    with urllib.request.urlopen(f"{url}/catalog") as answer:
        objects: list[dict[str, Any]] = json.load(answer)["objects"]
    (zone,) = (each["id"] for each in objects if each["name"] == "rows")
    return int(zone)


async def _leader(addresses: list[Address], group: str) -> str:
    """Who leads the partition, once a first row was put and all nodes have joined."""
    until_s = time.monotonic() + STARTED_S
    async with RaftClient(addresses) as client:
        await TableClient(client).put(TABLE, {"k": "first", "v": ""})
        while True:
            try:
                found = await client.ask_json(group, ClientOperation.MEMBERS)
                if len(found["book"]) == len(addresses):
                    return str(found["leader"])
            except LithifyError:
                if time.monotonic() > until_s:
                    raise
            assert time.monotonic() < until_s, f"{group} has not all members"
            await asyncio.sleep(AGAIN_S)
