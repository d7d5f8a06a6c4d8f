"""A node that stops closes all its connections."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from lithify.raft.net.peer_link import PeerLink
from tests.unit.raft.net.nodes import HERE, Node

if TYPE_CHECKING:
    import pytest


def test_a_node_that_stops_connects_to_nobody_that_it_learns_of_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    close = PeerLink.close

    async def story() -> None:
        a, b = Node("a"), Node("b")
        await a.transport.start(HERE)
        await b.transport.start(HERE)
        a.transport.learn({"b": b.at})

        async def close_and_learn(link: PeerLink) -> None:
            await close(link)
            # As a message does that was on its way.
            a.transport.learn({"c": b.at})

        monkeypatch.setattr(PeerLink, "close", close_and_learn)
        await a.transport.close()
        assert a.transport.links == {}
        assert a.identity.book == {"b": b.at, "c": b.at}
        monkeypatch.undo()
        await b.transport.close()

    asyncio.run(story())
