"""Connections that greet wrongly, or not at all, cost little and keep no other away."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from lithify.raft.net import transport as transport_module
from lithify.raft.net.control_frames import WIRE_VERSION, ClientRequest, ClientResponse, Hello
from lithify.raft.net.wire_format import encode_frame
from tests.unit.raft.net.nodes import Node, closed, frames, greeted, running, until

if TYPE_CHECKING:
    import pytest


def test_a_book_that_is_nested_too_deeply_breaks_the_protocol() -> None:
    async def story() -> None:
        a = Node("a")
        async with running(a):
            defects: list[Any] = []
            asyncio.get_running_loop().set_exception_handler(lambda *_: defects.append(_))
            address = a.transport.address
            reader, writer = await asyncio.open_connection(address.host, address.port)
            hello = Hello(WIRE_VERSION, a.identity.cluster, "b", "a", "[" * 60_000)
            writer.write(encode_frame([("", hello)]))
            assert (await frames(reader))[1]
            await closed(writer)
            assert defects == []

    asyncio.run(story())


def test_a_flood_of_connections_without_a_greeting_is_bounded_and_others_are_served(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(transport_module, "GREETINGS_MAX", 3)
    monkeypatch.setattr(transport_module, "CONNECTIONS_MAX", 2)

    async def story() -> None:
        a = Node("a")
        async with running(a):
            address = a.transport.address
            silent = []
            for number in range(1, 9):
                silent.append(await asyncio.open_connection(address.host, address.port))
                await until(lambda: len(a.transport.channels) == min(number, 3))  # noqa: B023
            # The oldest are closed.
            for reader, _ in silent[:5]:
                assert await frames(reader) == ([], True)
            assert all(len(each.get_buffer(0)) < 2**14 for each in a.transport.channels)
            one, two = await greeted(a), await greeted(a)
            for reader, writer in (one, two):
                writer.write(encode_frame([("g", ClientRequest(7, 1, b"x"))]))
                assert (await frames(reader, ("g", ClientResponse(7, 0, 0, b"x"))))[1] is False
            for _, writer in (*silent, one, two):
                await closed(writer)

    asyncio.run(story())
