"""One broker for all cases that do not kill theirs, in each process of the test run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.protocol.harness import PARTITIONED, Server

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("broker") / "data", topics=PARTITIONED, http=True)
    server.start()
    yield server
    alive = server.running
    server.kill()
    assert alive, f"the broker died:\n{server.log}"
    assert "Traceback" not in server.log, server.log


@pytest.fixture
def own_broker(tmp_path: Path) -> Iterator[Callable[..., Server]]:
    servers: list[Server] = []

    def start(**settings: object) -> Server:
        server = Server(tmp_path / f"data{len(servers)}", **settings)
        servers.append(server)
        server.start()
        return server

    yield start
    for server in servers:
        server.kill()
