"""Bytes of one of three members are flipped, or its disk does not read: no client gets a wrong
answer or none, the node continues, and the damage is repaired from the other members.
"""

from __future__ import annotations

import asyncio
import errno
import logging
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any

import pytest
import structlog
from typer.testing import CliRunner

from lithify.cli.main import app
from lithify.errors import Corrupt
from lithify.fs import LocalFileSystem
from lithify.log.segments.segment_file import SEGMENT_HEADER_BYTES
from lithify.raft.client.client import RaftClient
from lithify.raft.group.settings import GroupSettings
from lithify.raft.kv.client import KvClient
from lithify.raft.kv.machine import KvMachine, kv_machine
from lithify.raft.net.client_operations import Address, ClientOperation, OperationRefused
from lithify.raft.node.node import RaftNode
from lithify.raft.node.settings import RaftNodeSettings
from lithify.raft.storage.segment_file import SegmentLimits
from lithify.raft.storage.storage import StorageSettings
from lithify.testing.faulty_fs import Fault, FaultyFileSystem
from tests.patience import PROCESS_S_MAX
from tests.ports import free_port
from tests.unit.raft.net.nodes import until
from tests.unit.raft.node.test_node import running

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from lithify.fs import File
    from lithify.raft.storage.group_log import GroupLog

KEYS = 200


class Sick(LocalFileSystem):
    """Does not read files of some names."""

    def __init__(self) -> None:
        super().__init__()
        self.unreadable: Callable[[str], bool] = lambda _: False

    def open_read(self, path: str) -> File:
        if self.unreadable(path):
            raise OSError(errno.EIO, "Input/output error", path)
        return super().open_read(path)


def value(n: int) -> bytes:
    return b"value %d " % n + b"x" * 300


class Three:
    """Three nodes in this process."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        ports = {name: free_port() for name in ("n1", "n2", "n3")}
        self.book = {name: f"127.0.0.1:{port}" for name, port in ports.items()}
        self.fs = {name: Sick() for name in ports}
        self.nodes: dict[str, RaftNode] = {}
        self._stack: dict[str, AsyncExitStack] = {}

    def settings(self, name: str) -> RaftNodeSettings:
        host, port = self.book[name].split(":")
        return RaftNodeSettings(
            name,
            str(self.directory / name),
            Address(host, int(port)),
            {other: at for other, at in self.book.items() if other != name},
            tick_ms=30,
            group=GroupSettings(snapshot_entries=10_000),
            storage=StorageSettings(2**14, SegmentLimits(40, 2**20)),
        )

    async def start(self, name: str) -> None:
        stack = self._stack[name] = AsyncExitStack()
        made = running(self.settings(name), KvMachine, self.fs[name])
        self.nodes[name] = await stack.enter_async_context(made)

    async def stop(self, name: str) -> None:
        del self.nodes[name]
        await self._stack.pop(name).aclose()

    def segments(self, name: str) -> list[Path]:
        found = (self.directory / name / "groups" / "default").glob("*.segment")
        return sorted(path for path in found if not path.is_symlink())

    def log(self, name: str) -> GroupLog:
        return self.nodes[name].storage.groups["default"].log

    def damage(self, name: str) -> dict[str, Any]:
        seen = self.nodes[name].groups["default"].overview()
        return {key: seen[key] for key in ("damage_found", "damage_repaired", "damaged")}

    @asynccontextmanager
    async def client(
        self, *names: str, timeout_s: float = PROCESS_S_MAX
    ) -> AsyncIterator[KvClient]:
        addresses = [self.nodes[name].transport.address for name in names]
        async with RaftClient(addresses, timeout_s=timeout_s) as client:
            yield KvClient(client, "default")


@asynccontextmanager
async def three(directory: Path, *, snapshot: bool = False) -> AsyncIterator[Three]:
    made = Three(directory)
    try:
        for name in made.book:
            await made.start(name)
        async with made.client("n1", "n2", "n3") as kv:
            for start in range(0, KEYS, 20):
                writes = (kv.put(b"k%d" % n, value(n)) for n in range(start, start + 20))
                await asyncio.gather(*writes)
            index = (await kv.put(b"last", b"")).revision
        groups = [node.groups["default"] for node in made.nodes.values()]
        await until(lambda: all(group.applied_index >= index for group in groups))
        if snapshot:
            for node, group in zip(made.nodes.values(), groups, strict=True):
                group.take_snapshot()
                node.mark(group)
            await until(lambda: all(g.overview()["snapshot_index"] for g in groups))
        await until(lambda: all(len(made.segments(name)) >= 3 for name in made.book))
        yield made
    finally:
        for name in list(made.nodes):
            await made.stop(name)


async def check_all(kv: KvClient) -> None:
    for n in range(KEYS):
        assert (await kv.get(b"k%d" % n)).value == value(n), n


def flip(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 0x40
    path.write_bytes(data)


@pytest.fixture(autouse=True)
def records_go_to_logging() -> None:
    """Whatever another test in this process has configured."""
    structlog.reset_defaults()


def lines_of(caplog: pytest.LogCaptureFixture, text: str) -> list[str]:
    return [record.getMessage() for record in caplog.records if text in record.getMessage()]


@pytest.mark.parametrize("snapshot", [False, True])
@pytest.mark.parametrize("which", [0, -1])
def test_a_damaged_block_is_answered_by_others_and_repaired(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, which: int, *, snapshot: bool
) -> None:
    caplog.set_level(logging.INFO, "lithify.raft")

    async def story() -> None:
        async with three(tmp_path, snapshot=snapshot) as nodes:
            spans = nodes.log("n2").segments.spans
            path = nodes.segments("n2")[0].with_name(spans[which].ref.name)
            flip(path, SEGMENT_HEADER_BYTES + (60 if which else 700))
            async with nodes.client("n2") as kv:
                await check_all(kv)
            assert nodes.damage("n2")["damage_found"] == 1
            await until(lambda: not nodes.damage("n2")["damaged"])
            assert nodes.damage("n2")["damage_repaired"] == 1
            assert len(lines_of(caplog, "damage found")) == 1
            assert len(lines_of(caplog, "damage repaired")) == 1
            at = str(nodes.nodes["n2"].transport.address)
            command = ["raft", "overview", "--nodes", at]
            shown = await asyncio.to_thread(CliRunner().invoke, app, command)
            assert "default: damage found 1 times, repaired 1" in shown.stdout
            # No other member is needed to read it.
            log = nodes.log("n2")
            applied = nodes.nodes["n2"].groups["default"].applied_index
            log.read(list(log.state.needed(1, applied)))
            # It continues after a restart.
            await nodes.stop("n2")
            await nodes.start("n2")
            async with nodes.client("n2") as kv:
                await check_all(kv)
                await kv.put(b"more", b"")
            assert not nodes.damage("n2")["damage_found"]

    asyncio.run(story())


def test_entries_beside_the_damage_stay_readable(tmp_path: Path) -> None:
    async def story() -> None:
        async with three(tmp_path) as nodes:
            path = nodes.segments("n2")[0]
            log = nodes.log("n2")
            span = log.segments.spans[0]
            indexes = list(range(span.first, span.last + 1))
            for at in range(SEGMENT_HEADER_BYTES, path.stat().st_size, 97):
                data = path.read_bytes()
                flip(path, at)
                log.segments.close_files([span.ref.name])
                found = log.segments.read_intact(span.ref, indexes)
                # One frame, or none if the block index or the footer is hit.
                assert len(indexes) - len(found) <= 1, at
                path.write_bytes(data)

    asyncio.run(story())


def test_a_disk_that_does_not_read_a_segment_does_not_end_the_node(tmp_path: Path) -> None:
    async def story() -> None:
        async with three(tmp_path, snapshot=True) as nodes:
            bad = nodes.segments("n3")[1].name
            nodes.log("n3").segments.close_files([bad])
            nodes.fs["n3"].unreadable = lambda path: path.endswith(bad)
            async with nodes.client("n3") as kv:
                await check_all(kv)
                await kv.put(b"more", b"")
            assert nodes.damage("n3")["damage_found"] >= 1
            nodes.fs["n3"].unreadable = lambda _: False
            await until(lambda: not nodes.damage("n3")["damaged"])

    asyncio.run(story())


@pytest.mark.parametrize("operation", ["open_read", "size", "pread", "readinto"])
def test_a_leader_whose_disk_reads_no_segment_continues(tmp_path: Path, operation: str) -> None:
    """Whatever call the error comes from: clients are answered, and the node does not end."""

    async def story() -> None:
        async with three(tmp_path, snapshot=True) as nodes:
            await nodes.stop("n3")
            fs = FaultyFileSystem(LocalFileSystem())
            nodes.fs["n3"] = fs  # type: ignore[assignment]
            await nodes.start("n3")
            async with nodes.client("n1", "n2", "n3") as kv:
                group = nodes.nodes["n3"].groups["default"]
                while not group.leading_term:
                    # It may be refused while n3 catches up.
                    with suppress(OperationRefused):
                        await kv.client.ask_json("default", ClientOperation.TRANSFER, to="n3")
                segments = nodes.log("n3").segments
                segments.close_files([span.ref.name for span in segments.spans])
                fs.add(Fault(operation, "*.segment", count=None))
                await check_all(kv)
                for n in range(KEYS // 2):
                    await kv.put(b"more%d" % n, value(n))
                for what in (ClientOperation.SNAPSHOT, ClientOperation.COMPACT):
                    await kv.client.ask_json("default", what)
                await kv.put(b"most", b"")
            assert not nodes.nodes["n3"].has_failed
            fs.clear()
            await until(lambda: not nodes.damage("n3")["damaged"])
            async with nodes.client("n3") as kv:
                await check_all(kv)

    asyncio.run(story())


def test_a_leader_repairs_what_a_new_member_needs(tmp_path: Path) -> None:
    """n3 was away and gets its entries from a leader with damage, in segment and in snapshot."""

    async def story() -> None:
        async with three(tmp_path, snapshot=True) as nodes:
            async with nodes.client("n1", "n2") as kv:
                await kv.client.ask_json("default", ClientOperation.TRANSFER, to="n1")
            group = nodes.nodes["n1"].groups["default"]
            flip(nodes.segments("n1")[0], SEGMENT_HEADER_BYTES + 700)
            (snapshot,) = (tmp_path / "n1/groups/default/snapshots").glob("*/snapshot")
            flip(snapshot, snapshot.stat().st_size - 20)
            async with running_joiner(nodes) as joiner, nodes.client("n1") as kv:
                book = {"n4": str(joiner.transport.address)}
                await kv.client.ask_json("default", ClientOperation.CHANGE, change="+n4", book=book)
                await until(lambda: "default" in joiner.groups)
                await until(lambda: joiner.groups["default"].applied_index >= group.applied_index)
                async with RaftClient([joiner.transport.address]) as client:
                    await check_all(KvClient(client, "default"))
            assert nodes.damage("n1")["damage_repaired"] == 2

    asyncio.run(story())


@asynccontextmanager
async def running_joiner(nodes: Three) -> AsyncIterator[RaftNode]:
    given = RaftNodeSettings(
        "n4",
        str(nodes.directory / "n4"),
        Address("127.0.0.1", 0),
        nodes.book,
        join=True,
        tick_ms=30,
    )
    async with running(given) as node:
        yield node


def test_live_indexes_are_rebuilt_at_the_start(tmp_path: Path) -> None:
    async def story() -> None:
        async with three(tmp_path, snapshot=True) as nodes:
            await nodes.stop("n2")
            (live,) = (tmp_path / "n2/groups/default/snapshots").glob("*/live")
            flip(live, live.stat().st_size // 2)
            await nodes.start("n2")
            async with nodes.client("n2") as kv:
                await check_all(kv)

    asyncio.run(story())


def test_a_log_that_cannot_be_read_at_the_start_is_repaired_first(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Without a snapshot every entry may be one about the members: it does not begin without."""

    async def story() -> None:
        async with three(tmp_path) as nodes:
            await nodes.stop("n2")
            for path in nodes.segments("n2")[:2]:
                flip(path, SEGMENT_HEADER_BYTES + 700)
            await nodes.start("n2")
            assert list(nodes.nodes["n2"].ailing) == ["default"]
            assert "default" not in nodes.nodes["n2"].groups, "it does not vote"
            async with nodes.client("n2", "n1") as kv:
                await check_all(kv)
            await until(lambda: "default" in nodes.nodes["n2"].groups)
            assert not nodes.nodes["n2"].ailing
            assert len(lines_of(caplog, "damage repaired")) == 2
            await nodes.stop("n3")
            # Only with n2's vote.
            async with nodes.client("n2", "n1") as kv:
                await kv.put(b"more", b"")
                await check_all(kv)

    asyncio.run(story())


@pytest.mark.parametrize("kind", ["wal", "snapshot"])
def test_damage_that_cannot_be_repaired_at_the_start_is_named(tmp_path: Path, kind: str) -> None:
    """Votes and acknowledged entries may be lost: the node does not start, the others continue."""

    async def story() -> None:
        async with three(tmp_path, snapshot=True) as nodes:
            async with nodes.client("n1", "n2", "n3") as kv:
                for n in range(10):
                    await kv.put(b"more %d" % n, b"")
            await nodes.stop("n2")
            if kind == "wal":
                path = max((tmp_path / "n2/wal").glob("*.wal"))
                flip(path, path.stat().st_size // 2)
            else:
                (path,) = (tmp_path / "n2/groups/default/snapshots").glob("*/snapshot")
                flip(path, path.stat().st_size // 2)
            with pytest.raises(Corrupt) as raised:
                RaftNode(nodes.settings("n2"), LocalFileSystem(), kv_machine)
            assert path.name in str(raised.value)
            async with nodes.client("n1", "n3") as kv:
                await check_all(kv)
                await kv.put(b"others", b"continue")

    asyncio.run(story())
