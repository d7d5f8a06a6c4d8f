"""Three nodes of the metastore against three members of etcd.

`metastore-writes`: conditional writes, each a comparison that holds and a put of 256 bytes, 64 in
progress as of 64 clients, fsync on, all processes on this machine. Both clients have one connection
to the leader and are written by hand (`raft_client.py`, `etcd.py`).

`metastore-watch`: a put at the leader until a watcher of another node has its event, one after the
other.

Without etcd on the machine (PATH, or the directory in ETCD) there are no rows.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bench import etcd
from bench.harness import Case
from bench.raft_client import connect, free_port, propose_many
from lithify.metastore.client import MetastoreClient
from lithify.metastore.command_format import encode_transaction
from lithify.metastore.local_metastore import GROUP
from lithify.metastore.query_format import REPLY
from lithify.metastore.transaction import Compare, Condition, Put, Transaction
from lithify.raft.client.client import RaftClient
from lithify.raft.net.client_operations import Address, ClientOperation

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["CASES", "FULL", "QUICK", "Sizes"]

CLIENTS = 64
KEYS = 10_000
VALUE = os.urandom(256)


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much one round does."""

    rounds: int
    writes: int
    events: int


FULL = Sizes(rounds=5, writes=20_000, events=1000)
QUICK = Sizes(rounds=1, writes=300, events=20)


@dataclass(frozen=True, slots=True)
class _Members:
    """Three nodes that run."""

    leader: Address
    events_port: int
    """Of another one."""


@contextmanager
def metastore_members(directory: str) -> Iterator[_Members]:
    """Three nodes, until the block ends."""
    book = {f"n{number}": Address("127.0.0.1", free_port()) for number in (1, 2, 3)}
    events = {name: free_port() for name in book}
    os.makedirs(directory)
    with ExitStack() as stack:
        for name, address in book.items():
            peers = [f"{peer}={at}" for peer, at in book.items() if peer != name]
            options = [name, f"{directory}/{name}", str(address), str(events[name]), *peers]
            command = [sys.executable, "-m", "bench.metastore_node", *options]
            process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
            )
            stack.enter_context(process)
            stack.callback(process.terminate)
            assert process.stdout is not None
            assert process.stdout.readline() == "runs\n", "a node did not start"
        leader = asyncio.run(_leader(list(book.values())))
        other = next(name for name in book if name != leader)
        yield _Members(book[leader], events[other])


async def _leader(addresses: list[Address]) -> str:
    """Who leads, once a first transaction was done."""
    async with RaftClient(addresses) as client:
        await MetastoreClient(client).transact(Transaction(then=(Put(b"first", b""),)))
        found = await client.ask_json(GROUP, ClientOperation.MEMBERS)
    return str(found["leader"])


def _write(number: int) -> bytes:
    key = b"k%07d" % (number % KEYS)
    compare = Compare(key, Condition.REVISION_AT_MOST, 2**56)
    return encode_transaction(Transaction((compare,), (Put(key, VALUE),)))


def _write_many(address: Address, count: int) -> float:
    commands = [_write(number) for number in range(count)]
    return propose_many(address, GROUP, commands, CLIENTS, REPLY.size)


async def _watch_rounds(members: _Members, count: int) -> float:
    reader, writer = await asyncio.open_connection("127.0.0.1", members.events_port)
    # The first number says that the watch is there.
    await reader.readexactly(8)
    commands = [
        encode_transaction(Transaction(then=(Put(b"k%07d" % (number % KEYS), VALUE),)))
        for number in range(count)
    ]
    client = await connect(members.leader, GROUP, commands, REPLY.size)
    client.follows = False
    began_s = time.perf_counter()
    for _ in range(count):
        client.send(1)
        await reader.readexactly(8)
    took_s = time.perf_counter() - began_s
    client.close()
    writer.close()
    return took_s


def writes(directory: str, sizes: Sizes) -> Iterator[Case]:
    with _both(directory, "metastore-writes") as found:
        if found is None:
            return
        members, ports = found
        yield Case(
            "metastore-writes",
            f"three nodes, conditional writes of 256 B, {CLIENTS} clients",
            "three members of etcd, the same transactions",
            1,
            sizes.writes,
            "writes",
            lambda: _write_many(members.leader, sizes.writes),
            lambda: etcd.transact_many(ports.leader, KEYS, sizes.writes, CLIENTS, VALUE),
        )


def watch(directory: str, sizes: Sizes) -> Iterator[Case]:
    with _both(directory, "metastore-watch") as found:
        if found is None:
            return
        members, ports = found
        yield Case(
            "metastore-watch",
            "three nodes, a put until its event at another node",
            "three members of etcd, the same",
            1,
            sizes.events,
            "events",
            lambda: asyncio.run(_watch_rounds(members, sizes.events)),
            lambda: etcd.watch_rounds(ports, KEYS, sizes.events, VALUE),
        )


@contextmanager
def _both(directory: str, row: str) -> Iterator[tuple[_Members, etcd.EtcdPorts] | None]:
    """Three nodes of each; None without etcd."""
    program = etcd.find_etcd()
    if program is None:
        print(f"{row}: etcd not installed", file=sys.stderr)
        yield None
        return
    with (
        metastore_members(f"{directory}/ours") as members,
        etcd.etcd_members(program, f"{directory}/etcd") as ports,
    ):
        yield members, ports


CASES: dict[str, Callable[[str, Sizes], Iterator[Case]]] = {
    "metastore-writes": writes,
    "metastore-watch": watch,
}
