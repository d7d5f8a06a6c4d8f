"""Invalid requests: every response is below 500, has a reason in JSON, and changes nothing."""

from __future__ import annotations

import json
import socket
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from tests.cli.nodes import served
from tests.http.node import HttpNode
from tests.patience import PROCESS_S_MAX

if TYPE_CHECKING:
    from collections.abc import Iterator

SHAPE = {"capacity_bytes": 2**20, "segment_bytes": 2**17}
METHODS = ("GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "BREW")
JSON = {"Content-Type": "application/json"}


class Photos(HttpNode):
    """A node with one store and one blob in it."""

    def __init__(self) -> None:
        super().__init__()
        self.ask("PUT", "/blobs/photos", json=SHAPE)
        self.blob = self.ask("POST", "/blobs/photos", content=b"pixels").headers["Location"]

    def is_as_it_was(self) -> bool:
        [row] = self.ask("GET", "/blobs/photos/list").json()["blobs"]
        same = row["id"] == self.blob.rpartition("/")[2] and row["ttl"] == -1
        return same and self.blobs.names() == ["photos"]


@pytest.fixture
def node() -> Iterator[Photos]:
    with Photos() as node:
        yield node


def check_refused(answer: httpx.Response, method: str = "") -> None:
    assert 400 <= answer.status_code < 500, answer.text
    if method != "HEAD":
        assert list(answer.json()) == ["reason"]


def test_no_method_on_any_path_fails(node: Photos) -> None:
    paths = [path for path in node.ask("GET", "/openapi.json").json()["paths"] if "blobs" in path]
    assert len(paths) > 10
    for path in sorted(paths, key=len, reverse=True):
        for blob_id in (node.blob.rpartition("/")[2], "unknown"):
            for end in ("", "/", "/more"):
                for method in METHODS:
                    at = path.format(store="photos", blob_id=blob_id) + end
                    if (method, at) == ("DELETE", "/blobs/photos"):
                        continue
                    answer = node.ask(method, at, content=b"?")
                    assert answer.status_code < 500, (method, at, answer.text)
                    if answer.is_client_error and method != "HEAD":
                        assert list(answer.json()) == ["reason"], (method, at)


@pytest.mark.parametrize(
    "blob_id",
    [
        *("..", "%2e%2e", "..%2f..%2fetc%2fpasswd", "a%2Fb", "x;y=1", "%0d%0aA:%20b", "%00", "%"),
        *("%zz", "%FF", "%ED%A0%80", "a" * 1024, "a" * 1025, "%F0%9F%98%80" * 257),
    ],
)
def test_no_id_fails(node: Photos, blob_id: str) -> None:
    for method in ("GET", "HEAD", "DELETE"):
        answer = node.ask(method, f"/blobs/photos/{blob_id}")
        if blob_id not in ("..", "%2e%2e"):
            check_refused(answer, method)
        assert answer.status_code < 500
    assert node.blobs.names() in ([], ["photos"])


LONE = r"\ud800"
"""Half a character, which JSON can have and UTF-8 cannot."""
STORE = '"capacity_bytes":1048576,"segment_bytes":131072'


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("PUT", "/blobs/new", f'{{{STORE},"settings":{{"{LONE}":1}}}}'),
        ("PUT", "/blobs/new", f'{{{STORE},"settings":{{"policy":"{LONE}"}}}}'),
        ("PUT", "/blobs/new", f'{{{STORE},"settings":{{"triggers":[["admin"]]}}}}'),
        ("PUT", "/blobs/new", f'{{{STORE},"settings":{{"budget":{{"memory_bytes":1e30}}}}}}'),
        ("PUT", "/blobs/new", f'{{{STORE},"{LONE}":1}}'),
        ("PUT", "/blobs/new", '{"capacity_bytes":NaN,"segment_bytes":Infinity}'),
        ("PUT", "/blobs/new", '{"capacity_bytes":' + "9" * 5000 + ',"segment_bytes":1}'),
        ("PUT", "/blobs/new", "[" * 10_000),
        ("POST", "/blobs/photos/compaction", f'{{"policy":"{LONE}"}}'),
        ("PUT", "/blobs/photos/replicas", f'["http://{LONE}/blobs/x"]'),
        ("PUT", "/blobs/photos/replicas", r'["http://x/\u0000"]'),
        ("PUT", "/blobs/photos/replicas", '["http://["]'),
        ("PUT", "BLOB/ttl", '{"ttl":' + "9" * 30 + "}"),
        ("PUT", "BLOB/ttl", f'{{"ttl":1,"{LONE}":1}}'),
        ("POST", "/blobs/photos/replication/unknown", f'{{"ids":["{LONE}"]}}'),
        ("POST", "/blobs/photos/replication/records", f'{{"ids":["{LONE}"]}}'),
        ("POST", "/blobs/photos/replication/changes", f'{{"replica":"{LONE}"}}'),
    ],
)
def test_no_json_fails(node: Photos, method: str, path: str, body: str) -> None:
    at = path.replace("BLOB", node.blob)
    check_refused(node.ask(method, at, content=body.encode(), headers=JSON))
    assert node.is_as_it_was()


@pytest.mark.parametrize(
    "query",
    ["limit=0", "limit=x", f"limit={10**30}", "after=1.5", "after=%FF", "include=ALL", "include="],
)
def test_no_query_fails(node: Photos, query: str) -> None:
    check_refused(node.ask("GET", f"/blobs/photos/list?{query}"))


def test_a_list_continues_from_any_number(node: Photos) -> None:
    for after, found in ((10**30, 0), (2**63, 0), (-(10**30), 1)):
        answer = node.ask("GET", f"/blobs/photos/list?after={after}")
        assert len(answer.json()["blobs"]) == found


# --- over a socket: what no client library would send -------------------------------------------


def said(port: int, request: bytes) -> bytes:
    """The status of the answer."""
    with socket.create_connection(("127.0.0.1", port), timeout=PROCESS_S_MAX) as connection:
        connection.sendall(request)
        return connection.recv(12)


def test_a_node_continues_whatever_bytes_it_receives(tmp_path: Any) -> None:
    with served(tmp_path) as node, httpx.Client(base_url=node.http) as http:
        http.put("/blobs/photos", json=SHAPE | {"settings": {"triggers": ["admin"]}})
        place = http.post("/blobs/photos", content=b"pixels").headers["Location"]
        port = int(node.http.rpartition(":")[2])
        get, post = f"GET {place} HTTP/1.1\r\n".encode(), b"POST /blobs/photos HTTP/1.1\r\n"
        host = b"Host: x\r\n"
        refused = [
            get + b"\r\n",
            get + host + b"X: " + b"a" * 2_000_000 + b"\r\n\r\n",
            b"GET /blobs/photos/\xff HTTP/1.1\r\n" + host + b"\r\n",
            post + host + b"Content-Length: -5\r\n\r\n",
            post + host + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello!",
            post + host + b"Transfer-Encoding: chunked\r\n\r\nzz\r\nhello\r\n",
            post + host + b"x-lithify-um-a: a\x00b\r\nContent-Length: 0\r\n\r\n",
            post + host + b"x-lithify-um-a: " + b"m" * 20_000 + b"\r\nContent-Length: 0\r\n\r\n",
            post + host + b"x-lithify-ttl: \xb2\r\nContent-Length: 0\r\n\r\n",
            b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
        ]
        for request in refused:
            assert said(port, request) == b"HTTP/1.1 400", request[:100]
        for odd in (b"bytes=\xb2-", b"\xff\xfe", b"bytes=" + b"9" * 5000 + b"-"):
            assert said(port, get + host + b"Range: " + odd + b"\r\n\r\n") == b"HTTP/1.1 200"
        [row] = http.get("/blobs/photos/list").json()["blobs"]
        assert http.get(place).content == b"pixels", json.dumps(row)
        assert "level=error" not in node.logged()
