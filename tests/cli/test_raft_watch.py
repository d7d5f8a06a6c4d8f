"""Watching nodes in processes of their own: nothing is skipped when a leader dies or stops."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING, Any

import pytest

from lithify.raft.client.client import RaftClient
from lithify.raft.kv.client import KvClient
from lithify.raft.net.client_operations import MayHaveHappened, NoAnswer
from tests.cli.nodes import COMMAND
from tests.cli.raft_nodes import Cluster, leader_of, raft_cluster
from tests.patience import PROCESS_S_MAX, at_most

if TYPE_CHECKING:
    from pathlib import Path

GROUP = "default"


async def watch_through(cluster: Cluster, how: signal.Signals) -> None:
    """Put keys and watch them; the leader is sent a signal in between."""
    seen: list[Any] = []

    async def watch(kv: KvClient) -> None:
        async with aclosing(kv.watch(b"k")) as changes:
            while True:
                seen.append(await anext(changes))

    async with (
        RaftClient(cluster.addresses) as client,
        RaftClient(cluster.addresses, timeout_s=10) as writer,
    ):
        task = asyncio.create_task(watch(KvClient(client, GROUP)))
        kv = KvClient(writer, GROUP)
        revisions = {}
        for number in range(120):
            key = b"k%03d" % number
            if number == 40:
                leader = await leader_of(cluster)
                leader.signal(how)
            # Who has a stopped leader to talk to gives up when its time is over.
            with suppress(MayHaveHappened, NoAnswer):
                revisions[key] = (await kv.put(key, b"")).revision
        async with asyncio.timeout(PROCESS_S_MAX):
            while key not in revisions:
                with suppress(MayHaveHappened, NoAnswer):
                    revisions[key] = (await kv.put(key, b"")).revision
            while not seen or (seen[-1].key, seen[-1].revision) != (key, revisions[key]):
                await asyncio.sleep(0.02)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
    told = [(change.key, change.revision) for change in seen]
    assert told == sorted(set(told), key=lambda each: each[1]), "once, and in their order"
    missing = revisions.items() - set(told)
    assert not missing, missing


@pytest.mark.parametrize(
    "how", [signal.SIGKILL, pytest.param(signal.SIGSTOP, marks=pytest.mark.slow)]
)
def test_a_watch_survives_its_leader(tmp_path: Path, how: signal.Signals) -> None:
    with raft_cluster(tmp_path) as cluster:
        asyncio.run(watch_through(cluster, how))


def test_changes_are_printed_as_they_happen(tmp_path: Path) -> None:
    async def put(cluster: Cluster) -> None:
        async with RaftClient(cluster.addresses) as client:
            kv = KvClient(client, GROUP)
            await kv.put(b"a/1", b"red")
            await kv.put(b"b/1", b"white")
            await kv.delete(b"a/1")

    with raft_cluster(tmp_path, count=1) as cluster:
        asyncio.run(put(cluster))
        nodes = str(cluster.addresses[0])
        command: list[str | Path] = [
            COMMAND,
            "raft",
            "watch",
            "--nodes",
            nodes,
            "--json",
            "--from",
            "0",
        ]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            with at_most(PROCESS_S_MAX, process.kill):
                found = [json.loads(process.stdout.readline()) for _ in range(2)]
            assert [each["change"] for each in found] == ["reset", "put"]
            asyncio.run(put(cluster))
            with at_most(PROCESS_S_MAX, process.kill):
                found = [json.loads(process.stdout.readline()) for _ in range(3)]
            shown = [(each["change"], each["key"], each.get("value")) for each in found]
            assert shown == [
                ("put", "a/1", "red"),
                ("put", "b/1", "white"),
                ("delete", "a/1", None),
            ]
            process.send_signal(signal.SIGINT)
            assert process.wait(PROCESS_S_MAX) == 0
