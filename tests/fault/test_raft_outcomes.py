"""What a client says about a write is true, wherever its connection ends.

A proxy stands between client and node. It forwards this many bytes of one direction and then cuts
the connection, or goes silent. A client that says "not done" must be right.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from lithify.exit_codes import OUTCOME_UNKNOWN, UNREACHABLE
from lithify.raft.client.client import RaftClient
from lithify.raft.kv.client import KvClient
from lithify.raft.kv.format import KvOutcome
from lithify.raft.net.client_operations import Address, ClientOperation, MayHaveHappened, NoAnswer
from lithify.raft.net.client_operations import OperationOutcome as Not
from lithify.raft.net.control_frames import (
    WIRE_VERSION,
    ClientRequests,
    ClientResponse,
    Hello,
    Welcome,
)
from lithify.raft.net.wire_format import FRAME_HEADER_BYTES, decode_frame, encode_frame, frame_bytes
from tests.unit.raft.node.test_node import client_of, running, settings

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

FREE = 2**62
ASKED_S = 4
"""Long enough for a request to be sent, also on a busy machine."""


@dataclass
class Proxy:
    """Forwards to a node, up to a limit for each direction."""

    target: Address
    up: int = FREE
    down: int = FREE
    silent: bool = False
    """At the limit, stop to forward instead of cutting."""
    sent: int = 0
    """Bytes of the client that were forwarded."""
    answered: int = 0
    port: int = 0

    @property
    def address(self) -> Address:
        return Address("127.0.0.1", self.port)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection(self.target.host, self.target.port)
        async with asyncio.TaskGroup() as group:
            group.create_task(self._pump(reader, back, writer, is_up=True))
            group.create_task(self._pump(there, writer, back, is_up=False))

    async def _pump(
        self,
        source: asyncio.StreamReader,
        sink: asyncio.StreamWriter,
        other: asyncio.StreamWriter,
        *,
        is_up: bool,
    ) -> None:
        with suppress(ConnectionError):
            while data := await source.read(65536):
                room = self.up - self.sent if is_up else self.down - self.answered
                passed = data[: max(room, 0)]
                if is_up:
                    self.sent += len(passed)
                else:
                    self.answered += len(passed)
                sink.write(passed)
                await sink.drain()
                if len(passed) < len(data):
                    if not self.silent:
                        break
                    await source.read(-1)
        sink.close()
        if not self.silent:
            other.close()


@asynccontextmanager
async def proxied(target: Address, **limits: int) -> AsyncIterator[Proxy]:
    proxy = Proxy(target, **limits)  # type: ignore[arg-type]
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    proxy.port = server.sockets[0].getsockname()[1]
    try:
        yield proxy
    finally:
        server.close()


def test_the_error_of_a_read_names_the_silent_node(tmp_path: Path) -> None:
    async def story() -> None:
        async with running(settings(tmp_path, "n1")) as node, client_of(node) as direct:
            await KvClient(direct, "default").put(b"k", b"v")
            _, welcome = await _bytes_of_a_put(node.transport.address, b"k")
            async with (
                proxied(node.transport.address, silent=True, down=welcome - 1) as proxy,
                RaftClient([proxy.address], timeout_s=ASKED_S, learns=False) as client,
            ):
                with pytest.raises(NoAnswer, match=f"{proxy.address} was asked and is silent"):
                    await KvClient(client, "default").get(b"k")

    asyncio.run(story())


async def _bytes_of_a_put(target: Address, key: bytes) -> tuple[int, int]:
    async with proxied(target) as proxy, RaftClient([proxy.address], learns=False) as client:
        await KvClient(client, "default").put(key, b"value")
        return proxy.sent, proxy.answered


@pytest.mark.parametrize("silent", [False, True])
def test_not_done_is_reported_only_for_commands_that_were_not_done(
    tmp_path: Path, *, silent: bool
) -> None:
    async def said(kv: KvClient, target: Address, key: bytes, **limits: int) -> str:
        async with (
            proxied(target, silent=silent, **limits) as proxy,
            RaftClient([proxy.address], timeout_s=ASKED_S, learns=False) as client,
        ):
            try:
                await KvClient(client, "default").put(key, b"value")
            except (MayHaveHappened, NoAnswer) as error:
                code, text = error.exit_code, str(error)
            else:
                assert (await kv.get(key)).outcome is KvOutcome.DONE
                return "done"
        if code == OUTCOME_UNKNOWN:
            assert "no node was asked" not in text
            return "unknown"
        assert code == UNREACHABLE
        # All that the proxy let through has come to the node by now.
        await kv.put(b"barrier", b"")
        assert (await kv.get(key)).outcome is KvOutcome.ABSENT, limits
        return "not done"

    async def story() -> None:
        async with running(settings(tmp_path, "n1")) as node, client_of(node) as direct:
            kv, target = KvClient(direct, "default"), node.transport.address
            await kv.put(b"first", b"")
            sent, answered = await _bytes_of_a_put(target, b"measure")
            limits = [("up", n) for n in range(sent + 1)]
            limits += [("down", n) for n in range(answered + 1)]
            all_said = await asyncio.gather(
                *(said(kv, target, b"%s-%04d" % (d.encode(), n), **{d: n}) for d, n in limits)
            )
            # The limits reach from before the greeting to behind the answer.
            assert set(all_said) == {"not done", "unknown", "done"}
            # The last byte of the request decides whether it can be done. By themselves:
            # among that many others one of these may not be sent in time.
            assert await said(kv, target, b"without", up=sent - 1) == "unknown"
            assert await said(kv, target, b"with it", down=answered) == "done"

    asyncio.run(story())


def test_outcomes_at_a_silent_node_are_unknown(tmp_path: Path) -> None:
    async def story() -> None:
        async with running(settings(tmp_path, "n1")) as node, client_of(node) as direct:
            kv, target = KvClient(direct, "default"), node.transport.address
            await kv.put(b"first", b"")
            _, answered = await _bytes_of_a_put(target, b"k")
            async with (
                proxied(target, down=answered - 1, silent=True) as proxy,
                RaftClient([proxy.address], timeout_s=ASKED_S, learns=False) as client,
            ):
                with pytest.raises(MayHaveHappened, match="was asked and is silent") as raised:
                    await KvClient(client, "default").put(b"k2", b"value")
            assert raised.value.exit_code == OUTCOME_UNKNOWN
            assert (await kv.get(b"k2")).outcome is KvOutcome.DONE

    asyncio.run(story())


async def _put_off(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """A node that says `not now` to everything."""
    with suppress(asyncio.IncompleteReadError, ConnectionError):
        while True:
            head = await reader.readexactly(FRAME_HEADER_BYTES)
            size = frame_bytes(memoryview(head), 2**20)
            frame = head + await reader.readexactly(size - FRAME_HEADER_BYTES)
            for group, message in decode_frame(memoryview(frame), "", ""):
                answers: list[object] = []
                if isinstance(message, Hello):
                    answers = [Welcome(WIRE_VERSION, "n1", "", "{}")]
                elif isinstance(message, ClientRequests):
                    answers = [ClientResponse(n, Not.NOT_NOW, 0, b"wait") for n in message.numbers]
                writer.write(encode_frame([(group, answer) for answer in answers]))
    writer.close()
    await writer.wait_closed()


def test_a_multi_step_operation_is_unknown_without_a_final_answer() -> None:
    """A node may have made the new member a learner before it says `not now`."""

    async def story() -> None:
        ended = asyncio.Event()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await _put_off(reader, writer)
            ended.set()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        at = Address("127.0.0.1", server.sockets[0].getsockname()[1])
        async with RaftClient([at], timeout_s=1) as client:
            with pytest.raises(MayHaveHappened):
                await client.ask_json("default", ClientOperation.CHANGE, change="+n2", book={})
            with pytest.raises(NoAnswer):
                await client.ask("default", ClientOperation.PROPOSE, b"command")
        await ended.wait()
        server.close()

    asyncio.run(story())
