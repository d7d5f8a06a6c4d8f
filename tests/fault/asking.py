"""What tests ask a node, over sockets: a process of its own or one in a thread."""

from __future__ import annotations

import json
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pulsar

from tests.patience import PROCESS_S_MAX

if TYPE_CHECKING:
    from collections.abc import Iterator

TOPIC = "persistent://public/default/orders"
ADMIN = "/admin/v2/persistent/public/default"
WAIT_S = PROCESS_S_MAX
RECEIVE_MS = 1000 * WAIT_S
EARLIEST = pulsar.InitialPosition.Earliest


class Reachable(Protocol):
    """A node that listens."""

    pulsar: str
    http: str


@contextmanager
def client_of(node: Reachable) -> Iterator[pulsar.Client]:
    client = pulsar.Client(
        node.pulsar, logger=pulsar.FileLogger(pulsar.LoggerLevel.Warn, "/dev/null")
    )
    try:
        yield client
    finally:
        client.close()


def ask(node: Reachable, method: str, path: str, body: object = None) -> tuple[int, Any]:
    """(status, answer); JSON if it is some."""
    data = None if body is None else json.dumps(body).encode()
    headers = {} if data is None else {"Content-Type": "application/json"}
    request = Request(f"{node.http}{path}", data, headers, method=method)
    try:
        with urlopen(request, timeout=WAIT_S) as answer:
            status, content = answer.status, answer.read().decode()
    except HTTPError as error:
        status, content = error.code, error.read().decode()
    try:
        return status, json.loads(content)
    except ValueError:
        return status, content


def said(node: Reachable, path: str, status: int, text: str) -> None:
    """Wait until the node says so of itself."""
    deadline_s = time.monotonic() + WAIT_S
    while (answer := ask(node, "GET", f"/admin/v2/brokers/{path}"))[0] != status or text not in str(
        answer[1]
    ):
        assert time.monotonic() < deadline_s, answer
        time.sleep(0.1)
