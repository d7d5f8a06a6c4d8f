"""Three nodes, as users run them: what was acknowledged stays, whatever happens to processes."""

from __future__ import annotations

import asyncio
import json
import random
import signal
import subprocess
import time
from collections import defaultdict
from contextlib import contextmanager, suppress
from subprocess import PIPE
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from lithify.cli.main import app
from lithify.raft.client.client import RaftClient
from lithify.raft.kv.client import KvClient
from lithify.raft.kv.format import KvOutcome
from lithify.raft.net.client_operations import ClientOperation, MayHaveHappened, NoAnswer
from tests.cli.nodes import COMMAND
from tests.cli.raft_nodes import Cluster, RaftProcess, leader_of, raft_cluster
from tests.linearizable import Op, explain, is_linearizable
from tests.patience import PROCESS_S_MAX, at_most
from tests.ports import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

GROUP = "default"


@contextmanager
def served(data: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """(process, address) of a node that is gone when the block ends."""
    options = ("--id", "n1", "--listen", "127.0.0.1:0", "--data", data, "--tick-ms", "50")
    with subprocess.Popen(
        [COMMAND, "raft", "serve", *options], stdout=PIPE, stderr=PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            with at_most(PROCESS_S_MAX, process.kill):
                line = process.stdout.readline()
            yield process, line.removeprefix("raft").strip()
        finally:
            process.kill()


def test_a_key_value_store_from_the_command_line(tmp_path: Path) -> None:
    with served(tmp_path / "n1") as (process, address):

        def run(*command: str) -> tuple[int, str]:
            done = CliRunner().invoke(app, ["raft", *command, "--nodes", address])
            return done.exit_code, done.stdout

        def run_json(*command: str) -> Any:
            return json.loads(run(*command, "--json")[1])

        revision = run_json("put", "colour", "red")["revision"]
        assert run("get", "colour") == (0, "red\n")
        assert run_json("get", "colour") == {
            "key": "colour",
            "value": "red",
            "revision": revision,
        }
        assert run("cas", "colour", "blue", "--expected", "green")[0] == 4
        assert run("cas", "colour", "blue", "--expected", "red")[0] == 0
        assert run("cas", "size", "9")[0] == 0
        assert run("scan")[1] == "colour\tblue\nsize\t9\n"
        assert run("delete", "size")[0] == 0
        assert run("delete", "size")[0] == 3
        assert run("get", "size")[0] == 3
        assert run("members")[1].startswith("voters n1; leader n1, term 1\n")
        assert run("create", "orders", "--member", "n1") == (0, "")
        assert run("put", "--group", "orders", "colour", "white")[0] == 0
        assert run("get", "colour") == (0, "blue\n")
        assert run("remove", "n9", "--json")[0] == 4
        assert run("add", "n2")[0] == 2
        assert "started" in run("snapshot")[1]
        assert run("compact")[0] == 0
        (seen,) = run_json("overview").values()
        assert [group["group"] for group in seen["groups"]] == ["default", "orders"]
        assert seen["wal_bytes"] > 0
        shown = run("overview")[1]
        assert f"n1 of raft at {address}\n" in shown
        assert "no node" in shown
        assert "orders" in shown
        assert run("drop", "orders") == (0, "")
        assert run("get", "--group", "orders", "colour")[0] == 3
        assert "orders" not in run("overview")[1]
        assert run("drop", "orders", "--yes")[0] == 3
        assert run("create", "orders", "--member", "n1") == (0, "")
        assert run("get", "--group", "orders", "colour")[0] == 3

        second: list[str | Path] = [
            COMMAND,
            "raft",
            "serve",
            "--id",
            "n1",
            "--listen",
            "127.0.0.1:0",
            "--data",
        ]
        refused = subprocess.run(
            [*second, tmp_path / "n1"], capture_output=True, text=True, check=False
        )
        assert refused.returncode == 4
        owner = f"raft node, pid {process.pid}"
        assert refused.stderr == f"lithify: error: {tmp_path}/n1 is open for writing by {owner}\n"

        process.terminate()
        assert process.wait(PROCESS_S_MAX) == 0


def test_other_machines_are_let_in_with_tls_or_on_purpose_only(tmp_path: Path) -> None:
    options = ["--id", "n1", "--listen", "0.0.0.0:0", "--data", str(tmp_path / "n1")]
    refused = CliRunner().invoke(app, ["raft", "serve", *options])
    assert refused.exit_code == 2
    assert "--tls or --allow-open must be given" in refused.stderr


@pytest.mark.parametrize(
    ("option", "value", "why"),
    [
        ("--tick-ms", "0", "tick_ms"),
        ("--snapshot-entries", "0", "snapshot_entries"),
        ("--wal-file-bytes", "0", "wal_file_bytes"),
        ("--segment-bytes", str(2**32), "segment_bytes"),
    ],
)
def test_options_have_limits(tmp_path: Path, option: str, value: str, why: str) -> None:
    options = ["--id", "n1", "--listen", "127.0.0.1:0", "--data", str(tmp_path / "n1")]
    refused = CliRunner().invoke(app, ["raft", "serve", *options, option, value])
    assert refused.exit_code == 2
    assert why in refused.stderr
    assert not (tmp_path / "n1").exists()


def test_the_own_address_may_be_among_the_peers(tmp_path: Path) -> None:
    at = f"127.0.0.1:{free_port()}"
    options = ["--data", str(tmp_path / "n1"), "--peer", f"n1={at}"]
    with subprocess.Popen(
        [COMMAND, "raft", "serve", "--id", "n1", *options], stdout=PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            with at_most(PROCESS_S_MAX, process.kill):
                assert process.stdout.readline() == f"raft  {at}\n"
            done = CliRunner().invoke(app, ["raft", "members", "--nodes", at])
            assert done.stdout.startswith("voters n1; ")
        finally:
            process.kill()

    def refusal(*more: str) -> str:
        done = CliRunner().invoke(app, ["raft", "serve", *options, *more])
        assert done.exit_code == 2
        return done.stderr

    assert f"--peer n1={at} has another port" in refusal("--id", "n1", "--listen", "127.0.0.1:1")
    assert "--listen or --peer n2=HOST:PORT must be given" in refusal("--id", "n2")


class Load:
    """Clients that write and read a few keys at a time, and remember what they were told."""

    def __init__(self, cluster: Cluster, seed: int) -> None:
        self._cluster = cluster
        self.random = random.Random(seed)
        self.history: dict[bytes, list[Op]] = defaultdict(list)
        self.done = 0
        self.unknown = 0

    async def run(self, until: asyncio.Event) -> None:
        number = 0
        async with RaftClient(self._cluster.addresses, timeout_s=10) as client:
            kv = KvClient(client, GROUP)
            while not until.is_set():
                # Few operations a key, so that histories stay short enough to be searched.
                key = b"key-%d" % (self.done // 60)
                number += 1
                await self._one(kv, key, b"%x." % self.random.getrandbits(64) + bytes(500))

    async def _one(self, kv: KvClient, key: bytes, value: bytes) -> None:
        kind = self.random.choice(("put", "put", "cas", "get", "get", "delete"))
        op = Op(kind, time.monotonic(), None if kind in ("get", "delete") else value)
        ops = self.history[key]
        ops.append(op)
        try:
            if kind == "put":
                reply = await kv.put(key, value)
            elif kind == "cas":
                known = [each for each in ops if each.kind == "get" and each.returned < op.called]
                op.expected = known[-1].answer if known else None  # type: ignore[assignment]
                reply = await kv.compare_and_set(key, value, op.expected)
            elif kind == "delete":
                reply = await kv.delete(key)
            else:
                reply = await kv.get(key)
        except NoAnswer:
            # Nothing has happened, and nothing will.
            ops.remove(op)
            return
        except MayHaveHappened:
            self.unknown += 1
            return
        op.returned = time.monotonic()
        done = reply.outcome is KvOutcome.DONE
        op.answer = (reply.value if done else None) if kind == "get" else done
        self.done += 1

    def check(self) -> None:
        for key, ops in self.history.items():
            assert is_linearizable(ops), f"{key!r} is not linearizable\n{explain(ops)}"


async def harm(cluster: Cluster, chance: random.Random, until: asyncio.Event) -> int:
    """Kill, stop and start nodes at random; how often."""
    times = 0
    while not until.is_set():
        node = chance.choice(list(cluster.nodes.values()))
        times += 1
        if chance.random() < 0.5:
            await asyncio.to_thread(node.kill)
            await asyncio.sleep(chance.random())
            await asyncio.to_thread(node.start)
        else:
            node.signal(signal.SIGSTOP)
            await asyncio.sleep(2 * chance.random())
            node.signal(signal.SIGCONT)
        with suppress(TimeoutError):
            await asyncio.wait_for(until.wait(), chance.random())
    return times


async def read_all(
    node: RaftProcess, keys: list[bytes], group: str = GROUP
) -> dict[bytes, bytes | None]:
    """The values as one member has them; each is linearizable, but read from its own log."""
    values: dict[bytes, bytes | None] = {}
    async with RaftClient([node.address], timeout_s=PROCESS_S_MAX) as client:
        kv = KvClient(client, group)
        for key in keys:
            reply = await kv.get(key)
            values[key] = reply.value if reply.outcome is KvOutcome.DONE else None
    return values


async def overview(node: RaftProcess) -> dict[str, Any]:
    async with RaftClient([node.address]) as client:
        found: dict[str, Any] = await client.ask_json(GROUP, ClientOperation.OVERVIEW)
        return found


async def compacted(node: RaftProcess) -> None:
    """Have a node take a snapshot and merge segments, and wait until it has begun with that."""
    before = await overview(node)
    async with asyncio.timeout(PROCESS_S_MAX), RaftClient([node.address]) as client:
        await client.ask_json(GROUP, ClientOperation.SNAPSHOT)
        while (await overview(node))["snapshot_index"] < before["applied_index"]:
            await asyncio.sleep(0.05)
        await client.ask_json(GROUP, ClientOperation.COMPACT)
        while (await overview(node))["merges"] == before["merges"]:
            await asyncio.sleep(0.05)


async def live_through(cluster: Cluster, seconds: float, seed: int, least: int) -> None:
    """Load and harm for a while; then every member has the same, also one that starts again.

    At least this many operations are done, however long that takes.
    """
    load = Load(cluster, seed)
    until = asyncio.Event()
    clients = [asyncio.create_task(load.run(until)) for _ in range(4)]
    harming = asyncio.create_task(harm(cluster, random.Random(seed), until))
    await asyncio.sleep(seconds)
    async with asyncio.timeout(PROCESS_S_MAX):
        # On a busy machine the members may have been without a leader for most of the time.
        while load.done <= least:
            await asyncio.sleep(0.1)
    until.set()
    times = await harming
    await asyncio.gather(*clients)
    print(f"seed {seed}: {load.done} operations, {load.unknown} unknown, {times} times harmed")
    load.check()
    keys = list(load.history)
    values = await read_all(cluster.nodes["n1"], keys)
    for node in cluster.nodes.values():
        await compacted(node)
        assert await read_all(node, keys) == values, f"after compaction of {node.node}"
    await rebuild(cluster, "n3", "n4")
    assert await read_all(cluster.nodes["n4"], keys) == values, (
        "on a member that began without files"
    )


async def rebuild(cluster: Cluster, lost: str, new: str) -> None:
    """A member loses its disk, and another one takes its place."""
    gone = cluster.nodes.pop(lost)
    gone.kill()
    gone.wipe()
    node = await asyncio.to_thread(cluster.joining, new)
    async with RaftClient(cluster.addresses) as client:
        await client.ask_json(GROUP, ClientOperation.CHANGE, change=f"-{lost}")
        book = {new: str(node.address)}
        await client.ask_json(GROUP, ClientOperation.CHANGE, change=f"+{new}", book=book)
    async with asyncio.timeout(PROCESS_S_MAX), RaftClient([node.address]) as client:
        while not (await client.ask_json("", ClientOperation.OVERVIEW))["groups"]:
            await asyncio.sleep(0.05)


def test_nothing_is_lost_while_nodes_are_killed_and_stopped(tmp_path: Path) -> None:
    with raft_cluster(tmp_path) as cluster:
        asyncio.run(live_through(cluster, 4, seed=random.getrandbits(32), least=20))


@pytest.mark.slow
def test_nothing_is_lost_in_minutes_of_kills_and_stops(tmp_path: Path) -> None:
    with raft_cluster(tmp_path) as cluster:
        asyncio.run(live_through(cluster, 240, seed=random.getrandbits(32), least=1000))


def test_a_leader_whose_peers_are_stopped_does_not_let_its_clients_wait(tmp_path: Path) -> None:
    async def story(cluster: Cluster) -> None:
        leader = await leader_of(cluster)
        async with RaftClient([leader.address], timeout_s=60) as client:
            kv = KvClient(client, GROUP)
            await kv.put(b"k", b"before")
            others = [node for node in cluster.nodes.values() if node is not leader]
            for node in others:
                node.signal(signal.SIGSTOP)
            try:
                began = time.monotonic()
                with pytest.raises(MayHaveHappened, match="the outcome of proposal"):
                    await kv.put(b"k", b"after")
                # Three election timeouts of half a second; not all the time that the client has.
                assert time.monotonic() - began < 30
            finally:
                for node in others:
                    node.signal(signal.SIGCONT)
            await kv.put(b"k", b"later")
            assert (await kv.get(b"k")).value == b"later"

    with raft_cluster(tmp_path) as cluster:
        asyncio.run(story(cluster))


def test_a_dropped_group_is_deleted_on_members_that_were_down(tmp_path: Path) -> None:
    async def gone(node: RaftProcess) -> None:
        async with asyncio.timeout(PROCESS_S_MAX):
            while [each.name for each in (node.data / "groups").iterdir()] != ["default"]:
                await asyncio.sleep(0.05)

    async def story(cluster: Cluster) -> None:
        leader = await leader_of(cluster)
        async with RaftClient(cluster.addresses, timeout_s=60) as client:
            orders = KvClient(client, "orders")
            async with RaftClient([leader.address], timeout_s=60) as first:
                await first.ask_json("orders", ClientOperation.CREATE, members=list(cluster.nodes))
                await asyncio.gather(*(orders.put(b"k%d" % n, bytes(500)) for n in range(600)))
                away = next(node for node in cluster.nodes.values() if node is not leader)
                await asyncio.to_thread(away.kill)
                await client.ask_json("orders", ClientOperation.DROP)
            for node in cluster.nodes.values():
                if node is not away:
                    await gone(node)
            await asyncio.to_thread(away.start)
            await gone(away)
            async with RaftClient([away.address], timeout_s=60) as first:
                await first.ask_json("orders", ClientOperation.CREATE, members=list(cluster.nodes))
            assert (await orders.get(b"k1")).outcome is KvOutcome.ABSENT
            await orders.put(b"k1", b"new")
            await asyncio.to_thread(away.kill)
            await asyncio.to_thread(away.start)
            assert await read_all(away, [b"k1", b"k2"], "orders") == {b"k1": b"new", b"k2": None}

    with raft_cluster(tmp_path) as cluster:
        asyncio.run(story(cluster))


async def overwrite(cluster: Cluster, keys: int, writes: int, value_bytes: int) -> None:
    """Write few keys many times, with many requests in flight."""
    left = iter(range(writes))

    async def one(kv: KvClient) -> None:
        for number in left:
            await kv.put(b"k%06d" % (number % keys), b"%012d" % number + bytes(value_bytes - 12))

    async with RaftClient(cluster.addresses, timeout_s=60) as client:
        await asyncio.gather(*(one(KvClient(client, GROUP)) for _ in range(256)))


async def disk_is_bounded(cluster: Cluster, keys: int, writes: int, value_bytes: int) -> None:
    await overwrite(cluster, keys, writes, value_bytes)
    live_bytes = keys * value_bytes
    # Beside what is live there are a file of the write-ahead log and one that is being moved.
    limit = 4 * live_bytes + 2 * 2**18
    for node in cluster.nodes.values():
        began = time.monotonic()
        # Full files are moved, and dead segments dropped, a little after the last answer.
        while (used := node.disk_bytes()) >= limit and time.monotonic() - began < 30:
            await asyncio.sleep(0.05)
        print(f"{node.node}: {used:,} bytes on disk, {live_bytes:,} live")
        assert used < limit


def test_overwriting_does_not_fill_the_disk(tmp_path: Path) -> None:
    with raft_cluster(tmp_path) as cluster:
        asyncio.run(disk_is_bounded(cluster, keys=300, writes=6_000, value_bytes=500))


@pytest.mark.slow
def test_two_million_overwrites_do_not_fill_the_disk(tmp_path: Path) -> None:
    with raft_cluster(tmp_path) as cluster:
        asyncio.run(disk_is_bounded(cluster, keys=10_000, writes=2_000_000, value_bytes=200))
