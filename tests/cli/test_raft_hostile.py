"""Hostile connections to a running node: errors by name, no crash, bounded memory."""

from __future__ import annotations

import asyncio
import json
import random
import struct
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from lithify.checksum import crc32c
from lithify.cli.main import app
from lithify.raft.client.client import RaftClient
from lithify.raft.core.messages import AppendRequest, Heartbeat
from lithify.raft.entry import Entry
from lithify.raft.kv import format as kv
from lithify.raft.kv.client import KvClient
from lithify.raft.net.client_operations import (
    ClientOperation,
    MayHaveHappened,
    NoAnswer,
    OperationRefused,
)
from lithify.raft.net.control_frames import WIRE_VERSION, Hello
from lithify.raft.net.wire_format import KINDS, encode_frame
from tests.cli.raft_nodes import RaftProcess, raft_cluster
from tests.patience import PROCESS_S_MAX

if TYPE_CHECKING:
    from collections.abc import Iterator

GROUP = "default"
SEED = 7
COMMANDS = (
    kv.put(b"k", b"v"),
    kv.delete(b"k"),
    kv.compare_and_set(b"k", b"v", None),
    kv.compare_and_set(b"k", b"v", 3),
    kv.rewrite(b"k", 5, b"v"),
    kv.unwatch(b"w"),
)
QUERIES = (kv.get(b"k"), kv.scan(b"k"), kv.scan(b"", 3, b"after"))
BODIES = (
    b"",
    b"{",
    b"null",
    b"\xff\xfe",
    b"[" * 100_000,
    b'{"members": [[]]}',
    b'{"members": ["n1", "../n2"]}',
    b'{"change": "+"}',
    b'{"change": "explicit:+n1,-n1"}',
    b'{"change": "+n2", "book": {"n2": "127..0.1:7001"}}',
    b'{"change": "+n2", "book": {"n2": "a\\u0000b:7001"}}',
    b'{"change": "+n2", "book": {"n2": ["far"]}}',
    b'{"to": 5}',
    b'{"to": "unknown"}',
    b'{"rewrite": {"a": []}}',
)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RaftProcess]:
    """One for all of these: whatever was done to it, the next finds it working."""
    with raft_cluster(tmp_path_factory.mktemp("raft"), 1) as cluster:
        yield cluster.nodes["n1"]


def mutated(rng: random.Random, data: bytes) -> bytes:
    """With bytes changed, gone or added."""
    changed = bytearray(data)
    for _ in range(rng.randrange(1, 4)):
        at = rng.randrange(len(changed) + 1)
        kind = rng.randrange(3)
        if kind == 0:
            changed[at : at + 1] = rng.randbytes(1)
        elif kind == 1:
            del changed[at:]
        else:
            changed[at:at] = rng.randbytes(rng.randrange(9))
    return bytes(changed)


async def outcome_of(client: RaftClient, operation: int, body: bytes) -> str:
    """How a node has answered."""
    try:
        await client.ask(GROUP, ClientOperation(operation), body)
    except (OperationRefused, NoAnswer, MayHaveHappened) as error:
        return type(error).__name__
    return "done"


async def works(node: RaftProcess) -> None:
    """The node is the same process, and does what it should."""
    async with RaftClient([node.address], timeout_s=PROCESS_S_MAX) as client:
        store = KvClient(client, GROUP)
        await store.put(b"still", b"here")
        assert (await store.get(b"still")).value == b"here"
    assert node.process is not None
    assert node.process.poll() is None
    assert "Traceback" not in node.errors.read_text()


def resident_bytes(node: RaftProcess) -> int:
    assert node.process is not None
    pages = Path(f"/proc/{node.process.pid}/statm").read_text().split()[1]
    return int(pages) * 4096


async def hostile_asks(node: RaftProcess) -> None:
    rng = random.Random(SEED)
    async with RaftClient([node.address], timeout_s=PROCESS_S_MAX) as client:
        for operation, good in (
            *((ClientOperation.PROPOSE, command) for command in COMMANDS),
            *((ClientOperation.READ, query) for query in QUERIES),
        ):
            for _ in range(40):
                body = mutated(rng, good)
                assert await outcome_of(client, operation, body) == "done", body
        for operation in (
            ClientOperation.CREATE,
            ClientOperation.CHANGE,
            ClientOperation.TRANSFER,
            ClientOperation.MEMBERS,
        ):
            for body in BODIES:
                ended = await outcome_of(client, operation, body)
                assert ended in ("done", "OperationRefused"), (operation, body, ended)
        (members,) = {(await client.ask_json(GROUP, ClientOperation.MEMBERS))["members"]}
        assert members == "voters n1"


def test_every_request_of_a_client_is_answered(node: RaftProcess) -> None:
    asyncio.run(hostile_asks(node))
    asyncio.run(works(node))
    # Garbage that was replicated is garbage after a restart too, and does no harm then.
    node.kill()
    node.start()
    asyncio.run(works(node))


def frame_of(body: bytes, length: int | None = None) -> bytes:
    """With a right checksum, whatever the length that it claims."""
    return struct.pack("<II", len(body) if length is None else length, crc32c(body)) + body


def hello(node: str) -> bytes:
    return bytes(encode_frame([("", Hello(WIRE_VERSION, "raft", node, "", "{}"))]))


def hostile_frames(rng: random.Random) -> Iterator[bytes]:
    """What comes behind a greeting, of a client or of a node."""
    entries = [Entry(5, 1, b"payload"), Entry(3, 2, b"another")]
    beat = bytes(encode_frame([(GROUP, Heartbeat("n9", "n1", 1, 0, 0))]))[8:]
    append = AppendRequest("n9", "n1", 1, 0, 0, entries, 0)
    backwards = bytes(encode_frame([(GROUP, append)]))
    yield from (rng.randbytes(size) for size in (1, 7, 8, 50, 5000))
    yield from (b"\xff" * 8, frame_of(b"x" * 100, 2**31), frame_of(b"", 0))
    yield from (frame_of(bytes((kind, 0)) + bytes(40)) for kind in range(len(KINDS) + 3))
    yield from (frame_of(mutated(rng, beat)) for _ in range(20))
    yield from (frame_of(mutated(rng, backwards[8:])) for _ in range(20))
    # Entries that go backwards: the connection ends, not the node.
    yield backwards
    for group in ("../../up", "a/b", ".", "x" * 200, "\0", "ä"):
        yield bytes(encode_frame([(group, AppendRequest("n9", "n1", 1, 0, 0, [], 0))]))
    # Bytes that are no text, where the name of a group should be.
    yield frame_of(bytes((6, 4)) + b"\xff\xfe\xff\xfe" + beat[2 + len(GROUP) :])


async def say(node: RaftProcess, *pieces: bytes) -> None:
    """Connect, say something, and hang up when the node has or says nothing more."""
    address = node.address
    reader, writer = await asyncio.open_connection(address.host, address.port)
    with suppress(ConnectionError):
        for piece in pieces:
            writer.write(piece)
        await writer.drain()
        writer.write_eof()
        async with asyncio.timeout(PROCESS_S_MAX):
            while await reader.read(2**16):
                pass
    writer.close()
    with suppress(ConnectionError):
        await writer.wait_closed()


def test_no_bytes_of_a_client_stop_a_node(node: RaftProcess) -> None:
    async def story() -> None:
        rng = random.Random(SEED)
        for frame in hostile_frames(rng):
            await say(node, frame)
            for name in ("", "n9"):
                await say(node, hello(name), frame)
                await say(node, hello(name), frame[: rng.randrange(len(frame) + 1)])
        await works(node)
        assert sorted(file.name for file in (node.data / "groups").iterdir()) == [GROUP]
        assert sorted(file.name for file in node.data.parent.iterdir()) == ["n1", "n1.log"]

    asyncio.run(story())


def test_a_length_that_is_only_claimed_costs_no_memory(node: RaftProcess) -> None:
    """Large frames that never come, of many connections; and of connections without a greeting."""

    async def story() -> None:
        await works(node)
        before = resident_bytes(node)
        address = node.address
        writers = []
        for number in range(200):
            _, writer = await asyncio.open_connection(address.host, address.port)
            claimed = struct.pack("<II", 31 * 2**20, 0) + bytes(10_000)
            writer.write((hello("") if number % 2 else b"") + claimed)
            writers.append(writer)
        await asyncio.gather(*(writer.drain() for writer in writers), return_exceptions=True)
        await works(node)
        grown = resident_bytes(node) - before
        print(f"{len(writers)} connections that claim 31 MiB each: {grown:,} bytes more")
        assert grown < 100 * 2**20
        for writer in writers:
            writer.close()

    asyncio.run(story())


def test_a_scan_of_large_values_is_paged(node: RaftProcess) -> None:
    """All of it in one answer would be more than a frame, or the memory, can have."""

    async def story() -> None:
        async with RaftClient([node.address], timeout_s=PROCESS_S_MAX) as client:
            store = KvClient(client, GROUP)
            for number in range(9):
                await store.put(b"large-%02d" % number, bytes([number]) * (4 * 2**20))
            rows = await store.scan(b"large-", 1000)
            assert [row.value[:1] for row in rows] == [bytes([number]) for number in range(9)]
            assert len(await store.scan(b"large-", 5)) == 5
            with pytest.raises(OperationRefused, match="larger than the limit"):
                await store.put(b"k", bytes(17 * 2**20))
        await works(node)

    asyncio.run(story())


def test_errors_of_the_command_line_are_lines_and_not_tracebacks(node: RaftProcess) -> None:
    """And what is for programs is JSON, also of commands that have nothing to say."""
    nodes = ["--nodes", str(node.address)]
    refused = CliRunner().invoke(app, ["raft", "transfer", "n9", *nodes])
    why = "n9 cannot lead: it is not a member. The voters are n1"
    assert (refused.exit_code, refused.stderr) == (4, f"lithify: error: {why}\n")
    for command in (["create", "other", "--member", "n1"], ["snapshot"], ["compact"]):
        done = CliRunner().invoke(app, ["raft", *command, "--json", *nodes])
        assert isinstance(json.loads(done.stdout), dict), command
    transferred = CliRunner().invoke(app, ["raft", "transfer", "n1", "--json", *nodes])
    assert json.loads(transferred.stdout)["leader"] == "n1"
    dropped = CliRunner().invoke(app, ["raft", "drop", "other", "--json", *nodes])
    assert isinstance(json.loads(dropped.stdout), dict)
    for text in ("127..0.1:7001", "host:99999", "host"):
        refused = CliRunner().invoke(app, ["raft", "get", "k", "--nodes", text])
        assert refused.exit_code == 2
        assert f"address {text!r} must be like 127.0.0.1:7001" in refused.stderr
