"""A node whose stderr is a pipe without a reader continues to serve."""

from __future__ import annotations

import fcntl
import os
import signal
import socket
from contextlib import closing
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import httpx
import pulsar

from tests.cli.nodes import Served
from tests.patience import PROCESS_S_MAX

if TYPE_CHECKING:
    from pathlib import Path

STRANGERS = 300
"""The node writes a line about each: ten times what goes into the pipe."""


def be_strange(address: str) -> None:
    """Say what no Pulsar client says, and wait until the node has hung up, which it logs."""
    host, port = urlsplit(address).hostname, urlsplit(address).port
    with socket.create_connection((host, port), timeout=PROCESS_S_MAX) as stranger:
        stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
        assert stranger.recv(1) == b""


def test_a_node_whose_log_output_is_not_read_serves_and_exits(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 4096)
    try:
        with closing(Served(tmp_path, stderr=writing)) as node:
            for _ in range(STRANGERS):
                be_strange(node.pulsar)
            with httpx.Client(base_url=node.http, timeout=PROCESS_S_MAX) as http:
                assert http.get("/admin/v2/brokers/health").text == "ok"
            client = pulsar.Client(node.pulsar, operation_timeout_seconds=PROCESS_S_MAX)
            client.create_producer("orders").send(b"paid")
            reader = client.create_reader("orders", pulsar.MessageId.earliest)
            assert reader.read_next(20_000).data() == b"paid"
            client.close()
            assert node.end(signal.SIGTERM)[0] == 0
    finally:
        os.close(writing)
        os.close(reading)


def test_no_line_is_lost_where_there_is_room_nor_at_the_end(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    with closing(Served(tmp_path, stderr=writing)) as node, open(reading, "rb") as log:
        os.close(writing)
        for _ in range(STRANGERS):
            be_strange(node.pulsar)
        assert node.end(signal.SIGTERM)[0] == 0
        lines = log.read().decode().splitlines()
        assert sum("connection closed" in line for line in lines) == STRANGERS
