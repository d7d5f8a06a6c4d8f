"""Ports for nodes that are told where to listen, or that come back where they were.

A port that the system picks for a moment may be picked again before the node listens there, for
another test or for a client that connects. A client that connects again and again to such a port
while its node is down may even connect to itself. So these ports are below those that systems pick.

Each process of the tests has blocks of ports to itself: it listens at the first port of each block,
and so no other process takes that block. A port is given out once.
"""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["free_port"]

FIRST, LAST = 10_000, 32_000
"""Linux picks ports from 32,768 on, other systems from 49,152 on."""
BLOCK_PORTS = 100

_claims: list[socket.socket] = []


def _free_ports() -> Iterator[int]:
    blocks = range(FIRST, LAST, BLOCK_PORTS)
    # Where to begin does not matter, but processes that begin elsewhere meet less often.
    begin = os.getpid() % len(blocks)
    for block in (*blocks[begin:], *blocks[:begin]):
        if (claim := _listening(block)) is None:
            continue
        _claims.append(claim)
        for port in range(block + 1, block + BLOCK_PORTS):
            if (found := _listening(port)) is not None:
                found.close()
                yield port


def _listening(port: int) -> socket.socket | None:
    try:
        return socket.create_server(("127.0.0.1", port))
    except OSError:
        return None


_ports = _free_ports()


def free_port() -> int:
    """A port of 127.0.0.1 that nothing listens at, and that no other caller gets."""
    return next(_ports)
