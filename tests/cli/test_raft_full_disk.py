"""Nodes whose disks are full: nothing acknowledged is lost, and they continue when there is space.

Each node has a small file system of its own, in memory; mounting one takes root.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING

import pytest

from lithify.raft.client.client import RaftClient
from lithify.raft.kv.client import KvClient
from lithify.raft.net.client_operations import ClientOperation, MayHaveHappened, NoAnswer
from tests.cli.raft_nodes import Cluster, RaftProcess
from tests.patience import PROCESS_S_MAX

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

GROUP = "default"
DISK_BYTES = 4 * 2**20
WAL_BYTES = 2**18
"""Of a full file of the write-ahead log, as `raft_server.py` has it."""


@contextmanager
def on_small_disks(directory: Path, count: int) -> Iterator[Cluster]:
    cluster = Cluster(directory, count)
    with ExitStack() as stack:
        for node in cluster.nodes.values():
            node.data.mkdir()
            mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(node.data)]
            if subprocess.run(mount, capture_output=True, check=False).returncode:
                pytest.skip("a file system of its own can be mounted by root only")
            stack.callback(subprocess.run, ["umount", str(node.data)], check=True)
            stack.callback(node.kill)
        cluster.start()
        yield cluster


@contextmanager
def filled(node: RaftProcess, left_bytes: int = 0) -> Iterator[None]:
    """Something else takes the disk, but for a little."""
    ballast = node.data / "BALLAST"
    with ballast.open("wb", buffering=0) as file, suppress(OSError):
        while not left_bytes or free_bytes(node) > left_bytes:
            file.write(bytes(4096))
    yield
    ballast.unlink()


def free_bytes(node: RaftProcess) -> int:
    found = os.statvfs(node.data)
    return found.f_bavail * found.f_bsize


def wal_bytes(node: RaftProcess) -> int:
    return sum(file.stat().st_size for file in (node.data / "wal").iterdir())


class Writer:
    """Writes one key after the other, and knows which of them were acknowledged."""

    def __init__(self, kv: KvClient) -> None:
        self._kv = kv
        self._number = 0
        self.acknowledged: list[int] = []

    async def write(self, count: int) -> int:
        """How many were not answered."""
        unanswered = 0
        for _ in range(count):
            self._number += 1
            try:
                await self._kv.put(b"key-%d" % self._number, self.value(self._number))
            except (NoAnswer, MayHaveHappened):
                unanswered += 1
            else:
                self.acknowledged.append(self._number)
        return unanswered

    async def check(self, node: RaftProcess) -> None:
        """The node has all of them, as of now."""
        async with RaftClient([node.address], timeout_s=PROCESS_S_MAX) as client:
            kv = KvClient(client, GROUP)
            for number in self.acknowledged:
                reply = await kv.get(b"key-%d" % number)
                assert reply.value == self.value(number), (node.node, number)

    @staticmethod
    def value(number: int) -> bytes:
        return b"%06d" % number * 800


async def said(node: RaftProcess, *texts: str) -> None:
    """Come back when the node's log has a line with all of these."""
    async with asyncio.timeout(PROCESS_S_MAX):
        while not any(
            all(text in line for text in texts) for line in node.errors.read_text().splitlines()
        ):
            await asyncio.sleep(0.02)


async def leader_of(cluster: Cluster, client: RaftClient) -> RaftProcess:
    return cluster.nodes[(await client.ask_json(GROUP, ClientOperation.MEMBERS))["leader"]]


def test_a_leader_with_a_full_disk_transfers_leadership(tmp_path: Path) -> None:
    async def story(cluster: Cluster) -> None:
        async with RaftClient(cluster.addresses, timeout_s=5) as client:
            writer = Writer(KvClient(client, GROUP))
            await writer.write(20)
            full = await leader_of(cluster, client)
            with filled(full):
                # Those that the old leader has taken and cannot answer; some fitted on a last page.
                assert await writer.write(60) <= 2
                await said(full, "write refused", "wal", "No space left on device")
                assert await leader_of(cluster, client) is not full
            assert await writer.write(20) == 0
        for node in cluster.nodes.values():
            await writer.check(node)

    with on_small_disks(tmp_path, 3) as cluster:
        asyncio.run(story(cluster))


def test_a_single_node_waits_for_space_and_resumes(tmp_path: Path) -> None:
    """There is room for the end of a file of the write-ahead log, but not for its segments."""

    async def story(cluster: Cluster) -> None:
        node = cluster.nodes["n1"]
        async with RaftClient(cluster.addresses, timeout_s=5) as client:
            writer = Writer(KvClient(client, GROUP))
            await writer.write(10)
            with filled(node, left_bytes=WAL_BYTES - wal_bytes(node) + 2**16):
                while not await writer.write(1):
                    pass
                await said(node, "segments refused", "No space left on device")
                await said(node, "write refused", "No space left on device")
            async with asyncio.timeout(PROCESS_S_MAX):
                while await writer.write(1):
                    pass
            assert await writer.write(20) == 0
            await writer.check(node)
        node.kill()
        await asyncio.to_thread(node.start)
        await writer.check(node)

    with on_small_disks(tmp_path, 1) as cluster:
        asyncio.run(story(cluster))
