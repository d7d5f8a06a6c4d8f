"""Raft nodes in processes of their own, which can be killed, stopped and started again."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import subprocess
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from lithify.raft.client.client import RaftClient
from lithify.raft.net.client_operations import Address, ClientOperation
from tests.forked_processes import ForkedProcess
from tests.patience import PROCESS_S_MAX, at_most
from tests.ports import free_port

if TYPE_CHECKING:
    import signal
    from collections.abc import Iterator

ROOT = Path(__file__).parent.parent.parent


class RaftProcess:
    """One node; its directory and address outlive its processes."""

    def __init__(self, directory: Path, node: str, peers: dict[str, str], *, join: bool) -> None:
        self.node = node
        self.data = directory / node
        self.address = Address("127.0.0.1", free_port())
        self.peers = peers
        self.join = join
        self.errors = directory / f"{node}.log"
        self.process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        """Come back when clients can connect."""
        self.launch()
        self.await_ready()

    def launch(self) -> None:
        given = {
            "node": self.node,
            "data": str(self.data),
            "listen": str(self.address),
            "peers": self.peers,
            "join": self.join,
        }
        with self.errors.open("a") as errors:
            self.process = ForkedProcess(
                "tests.cli.raft_server",
                [json.dumps(given)],
                cwd=ROOT,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )

    def await_ready(self) -> None:
        assert self.process is not None
        assert self.process.stdout is not None
        with at_most(PROCESS_S_MAX, self.process.kill):
            line = self.process.stdout.readline()
        assert line == f"raft  {self.address}\n", self.errors.read_text()

    def signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.communicate()
            self.process = None

    def end(self) -> int:
        """End it well; its exit code."""
        assert self.process is not None
        self.process.terminate()
        self.process.communicate(timeout=PROCESS_S_MAX)
        code = self.process.returncode
        self.process = None
        return code

    def wipe(self) -> None:
        """Lose the disk."""
        shutil.rmtree(self.data)

    def disk_bytes(self) -> int:
        size = 0
        for parent, _, names in os.walk(self.data):
            for name in names:
                # The node may remove it between the two looks.
                with contextlib.suppress(FileNotFoundError):
                    size += (Path(parent) / name).lstat().st_size
        return size


class Cluster:
    """Nodes that know each other."""

    def __init__(self, directory: Path, count: int) -> None:
        self.directory = directory
        self.nodes: dict[str, RaftProcess] = {}
        for number in range(1, count + 1):
            self.nodes[f"n{number}"] = RaftProcess(directory, f"n{number}", {}, join=False)

    def start(self) -> None:
        for node in self.nodes.values():
            node.peers = self.book(but=node.node)
            node.launch()
        for node in self.nodes.values():
            node.await_ready()

    def book(self, but: str = "") -> dict[str, str]:
        return {name: str(node.address) for name, node in self.nodes.items() if name != but}

    @property
    def addresses(self) -> list[Address]:
        return [node.address for node in self.nodes.values()]

    def joining(self, name: str) -> RaftProcess:
        """A node that runs and waits to be added."""
        node = self.nodes[name] = RaftProcess(self.directory, name, self.book(), join=True)
        node.start()
        return node


@contextmanager
def raft_cluster(directory: Path, count: int = 3) -> Iterator[Cluster]:
    """Nodes that are gone when the block ends."""
    cluster = Cluster(directory, count)
    try:
        cluster.start()
        yield cluster
    finally:
        for node in cluster.nodes.values():
            node.kill()


async def leader_of(cluster: Cluster) -> RaftProcess:
    """The node that leads, as far as those say that run."""
    async with RaftClient(cluster.addresses) as client:
        async with asyncio.timeout(PROCESS_S_MAX):
            while True:
                found = await client.ask_json("default", ClientOperation.MEMBERS)
                if found["leader"]:
                    return cluster.nodes[found["leader"]]
                await asyncio.sleep(0.05)
