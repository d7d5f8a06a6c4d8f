"""A partition of a table that is moved to another node, against a copy of its bytes.

`rebalance`: a zone with one partition gets one more replica, on another node in each round: from
the new version of the catalog until the assignment says that it is there. There are rows of 4 KiB,
written in transactions of 16, all of them live, and a snapshot, as in a group that is in use. The
other side sends a file of that size over a connection of the loopback interface to a process that
writes it, with one fsync.

All nodes, and both ends of the copy, are processes of their own.
"""

from __future__ import annotations

import itertools
import os
import socket
import subprocess
import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bench.harness import Case
from bench.raft_client import free_port

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["CASES", "FULL", "QUICK", "Sizes"]

ROW_BYTES = 4096
PIECE_BYTES = 2**20


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much one round does."""

    rounds: int
    rows: int


FULL = Sizes(rounds=3, rows=2**30 // ROW_BYTES)
QUICK = Sizes(rounds=1, rows=64)


class _Node:
    """A node that does what it is told."""

    def __init__(self, stack: ExitStack, directory: str, name: str, ports: dict[str, int]) -> None:
        peers = [f"{peer}=127.0.0.1:{port}" for peer, port in ports.items() if peer != name]
        options = [name, f"{directory}/{name}", str(ports[name]), *peers]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.table_node", *options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        stack.enter_context(self._process)
        stack.callback(self._process.terminate)

    def await_ready(self) -> None:
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "runs\n", "a node did not start"

    def do(self, *words: object) -> str:
        """The answer to a command."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(" ".join(map(str, words)) + "\n")
        self._process.stdin.flush()
        return self._process.stdout.readline()


def rebalance(directory: str, sizes: Sizes) -> Iterator[Case]:
    # One more node for each round, and for that which is not measured.
    ports = {f"n{number}": free_port() for number in range(1, sizes.rounds + 3)}
    size_bytes = sizes.rows * ROW_BYTES
    with ExitStack() as stack:
        os.makedirs(directory, exist_ok=True)
        nodes = [_Node(stack, directory, name, ports) for name in ports]
        for node in nodes:
            node.await_ready()
        nodes[0].do("fill", sizes.rows, ROW_BYTES)
        for node in nodes:
            node.do("snapshot")
        replicas = itertools.count(2)
        source = f"{directory}/source"
        with open(source, "wb") as file:
            pieces = range(0, size_bytes, PIECE_BYTES)
            file.writelines(os.urandom(min(PIECE_BYTES, size_bytes)) for _ in pieces)

        def ours() -> float:
            return float(nodes[0].do("replicas", next(replicas)))

        yield Case(
            "rebalance",
            f"one more replica of a partition with {size_bytes / 2**20:,.0f} MiB of live rows",
            "the bytes over loopback, written, fsync",
            0.33,
            size_bytes / 1e9,
            "GB",
            ours,
            lambda: _copy(source, f"{directory}/target"),
        )


def _copy(source: str, target: str) -> float:
    """Send a file to another process, which writes it; the seconds until it is durable."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        receiving = [sys.executable, "-c", _RECEIVE, str(server.getsockname()[1]), target]
        with subprocess.Popen(receiving, stdout=subprocess.PIPE) as process:
            connection, _ = server.accept()
            assert process.stdout is not None
            began_s = time.perf_counter()
            with connection, open(source, "rb") as file:
                buffer = memoryview(bytearray(PIECE_BYTES))
                while count := file.readinto(buffer):
                    connection.sendall(buffer[:count])
            assert process.stdout.readline() == b"done\n"
            took_s = time.perf_counter() - began_s
    os.remove(target)
    return took_s


_RECEIVE = f"""
import os, socket, sys
with socket.create_connection(("127.0.0.1", int(sys.argv[1]))) as connection:
    buffer = memoryview(bytearray({PIECE_BYTES}))
    with open(sys.argv[2], "wb", buffering=0) as file:
        while count := connection.recv_into(buffer):
            file.write(buffer[:count])
        os.fsync(file.fileno())
print("done", flush=True)
"""

CASES: dict[str, Callable[[str, Sizes], Iterator[Case]]] = {"rebalance": rebalance}
