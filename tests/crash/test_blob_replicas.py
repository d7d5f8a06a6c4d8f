"""Two nodes with a replica each, in processes of their own, one of them killed repeatedly."""

from __future__ import annotations

import contextlib
import json
import random
import signal
import threading
import time
from http.client import HTTPConnection, HTTPException
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest

from tests.cli.nodes import Served
from tests.patience import PROCESS_S_MAX
from tests.ports import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

STORE = {"capacity_bytes": 2**24, "segment_bytes": 2**20}
PATIENCE_S = PROCESS_S_MAX


class Node:
    """A node that is always found at the same port."""

    def __init__(self, data: Path, port: int, peer: int) -> None:
        self._data = data
        self.port = port
        self._peers = f"other=http://127.0.0.1:{peer}"
        self.url = f"http://127.0.0.1:{self.port}/blobs/photos"
        self.start()

    def start(self) -> None:
        at = ("--http-port", str(self.port))
        self.served = Served(self._data, *at, LITHIFY_BLOB_PEERS=self._peers)

    def kill(self) -> None:
        self.served.close()

    def ask(
        self, method: str, path: str = "", body: bytes | None = None, **headers: str
    ) -> tuple[int, bytes]:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=PROCESS_S_MAX)
        try:
            connection.request(method, urlsplit(self.url).path + path, body, headers)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def json(self, method: str, path: str = "", value: object = None) -> Any:
        body = None if value is None else json.dumps(value).encode()
        status, data = self.ask(method, path, body, **{"Content-Type": "application/json"})
        assert status < 300, (status, data)
        return json.loads(data)

    def put(self, content: bytes) -> str:
        status, data = self.ask("POST", "", content)
        assert status == 201, (status, data)
        return str(json.loads(data)["id"])


@contextlib.contextmanager
def two_nodes(directory: Path) -> Iterator[tuple[Node, Node]]:
    port_a, port_b = free_port(), free_port()
    nodes = (Node(directory / "a", port_a, port_b), Node(directory / "b", port_b, port_a))
    try:
        for node in nodes:
            node.json("PUT", "", STORE)
        a, b = nodes
        a.json("PUT", "/replicas", ["other"])
        b.json("PUT", "/replicas", [a.url])
        yield nodes
    finally:
        for node in nodes:
            node.kill()


def eventually(what: str, check: Any) -> None:
    """Another process does it: it is asked until it has."""
    deadline_s = time.monotonic() + PATIENCE_S
    while not check():
        assert time.monotonic() < deadline_s, what
        time.sleep(0.05)


def is_there(node: Node, blob_id: str, content: bytes) -> bool:
    return node.ask("GET", f"/{blob_id}?replicas=false") == (200, content)


def test_blobs_of_one_node_reach_the_other(tmp_path: Path) -> None:
    with two_nodes(tmp_path) as (a, b):
        content = random.Random(1).randbytes(300_000)
        blob_id = a.put(content)
        assert b.ask("GET", f"/{blob_id}") == (200, content), "it is asked for where it is not yet"
        status, part = b.ask("GET", f"/{blob_id}", Range="bytes=100-199")
        assert (status, part) == (206, content[100:200])
        eventually("the blob arrives", lambda: is_there(b, blob_id, content))
        assert b.ask("DELETE", f"/{blob_id}")[0] == 202
        eventually("the delete arrives", lambda: a.ask("GET", f"/{blob_id}")[0] == 410)
        assert a.ask("PUT", f"/{blob_id}/undelete")[0] == 200
        eventually("the undelete arrives", lambda: is_there(b, blob_id, content))
        assert a.ask("GET", "/nobody")[0] == 404
        b.kill()
        assert a.ask("DELETE", f"/{blob_id}")[0] == 202
        other = a.put(b"while it was away")
        b.start()
        eventually("it catches up", lambda: is_there(b, other, b"while it was away"))
        assert b.ask("GET", f"/{blob_id}")[0] == 410
        (peer,) = a.json("GET", "/replicas")
        assert peer["url"] == b.url
        assert peer["changes"] > 0
        assert a.served.end(signal.SIGTERM)[0] == 0


class Client(threading.Thread):
    """Puts and deletes at one node until it is told to stop; remembers what it was told."""

    def __init__(self, node: Node, seed: int) -> None:
        super().__init__()
        self._node = node
        self._rng = random.Random(seed)
        self.stopped = threading.Event()
        self.there: dict[str, bytes] = {}
        self.deleted: set[str] = set()
        self.doubtful: set[str] = set()
        """Deletes that were not answered."""

    def run(self) -> None:
        while not self.stopped.is_set():
            # A node that is being killed does not answer.
            with contextlib.suppress(OSError, HTTPException):
                self._act()

    def _act(self) -> None:
        rng = self._rng
        if self.there and rng.random() < 0.3:
            blob_id = rng.choice(list(self.there))
            self.doubtful.add(blob_id)
            if self._node.ask("DELETE", f"/{blob_id}")[0] == 202:
                del self.there[blob_id]
                self.deleted.add(blob_id)
                self.doubtful.remove(blob_id)
            return
        content = rng.randbytes(rng.choice([0, 100, 5000, 100_000]))
        self.there[self._node.put(content)] = content


@pytest.mark.slow
def test_a_node_killed_repeatedly_loses_and_revives_nothing(tmp_path: Path) -> None:
    with two_nodes(tmp_path) as nodes:
        a, b = nodes
        clients = [Client(a, 1), Client(b, 2)]
        for client in clients:
            client.start()
        for victim in (b, a):
            count = sum(len(client.there) for client in clients)
            eventually("more is put", lambda: sum(len(c.there) for c in clients) > count + 10)  # noqa: B023
            victim.kill()
            victim.start()
        for client in clients:
            client.stopped.set()
            client.join()
        there = {k: v for client in clients for k, v in client.there.items()}
        deleted = {blob_id for client in clients for blob_id in client.deleted}
        sure = set(there) - {blob_id for client in clients for blob_id in client.doubtful}

        def blobs(node: Node) -> set[str]:
            found: set[str] = set()
            page: dict[str, Any] = {"next": -1}
            while page["next"] is not None:
                page = node.json("GET", f"/list?after={page['next']}")
                found |= {each["id"] for each in page["blobs"]}
            return found

        eventually("both have the same", lambda: blobs(a) == blobs(b) and sure <= blobs(a))
        for node in nodes:
            assert not deleted & blobs(node)
            for blob_id in sure:
                assert is_there(node, blob_id, there[blob_id])
        assert len(sure) > 10
        assert deleted
