"""Nodes watch each other's processes over their connections."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from lithify.raft.net.control_frames import WATCHES_NODES
from lithify.raft.net.peer_link import PeerLink
from tests.unit.raft.net.nodes import Node, beat, is_connected, running, until

if TYPE_CHECKING:
    import pytest


def test_connected_nodes_of_this_version_learn_that_a_node_is_alive(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def story() -> None:
        a, b, c = Node("a"), Node("b"), Node("c")
        async with running(a, b, c):
            a.transport.learn({"b": b.at, "c": c.at})
            await until(lambda: is_connected(a, ["b", "c"]))
            a.transport.send_alive(7)
            await until(lambda: b.alive == c.alive == [("a", 7)])
            monkeypatch.setattr(PeerLink, "version", WATCHES_NODES - 1)
            a.transport.send_alive(8)
            a.transport.send("g", beat("a", "b"))
            await until(lambda: bool(b.heard))
            assert b.alive == [("a", 7)]

    asyncio.run(story())
