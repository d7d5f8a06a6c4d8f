"""Many connections that send as much as they may do not hold the event loop together."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from typing import TYPE_CHECKING

from lithify.pulsar.wire import wire_pb2 as wire
from lithify.pulsar.wire.framing import encode_command
from tests.hostile.holds import HOLD_MS_MAX, Hold, check_hold
from tests.hostile.node import watched_node
from tests.protocol.raw import RawClient, Type

if TYPE_CHECKING:
    from pathlib import Path

    from tests.hostile.node import WatchedNode

CONNECTIONS = 100
PINGS = 2_000
"""Of each connection: 26 KB, which takes 15 ms."""


def test_pings_of_a_hundred_connections(tmp_path: Path) -> None:
    with watched_node(tmp_path / "data") as node:
        # A round of turns, and what the loop does for each connection besides.
        check_hold(node, longest_iteration, watched_node, tmp_path, ms_max=2 * HOLD_MS_MAX)


def longest_iteration(node: WatchedNode) -> Hold:
    command = wire.BaseCommand(type=Type.PING)
    command.ping.SetInParent()
    pings = encode_command(command) * PINGS
    with ExitStack() as stack:
        clients = [
            stack.enter_context(RawClient(node.port, source="127.0.0.2"))
            for _ in range(CONNECTIONS)
        ]
        node.longest_hold()

        def answered(client: RawClient) -> None:
            for _ in range(PINGS):
                client.expect(Type.PONG)

        for client in clients:
            client.send(pings)
        readers = [threading.Thread(target=answered, args=(each,)) for each in clients]
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join()
        return Hold(node.longest_iteration_ms(), "an iteration of the loop")
