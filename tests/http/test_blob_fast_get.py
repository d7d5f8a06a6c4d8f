"""The fast path of a get answers like the slow one, and accepts nothing that is not a get."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

import pytest
from fastapi.routing import APIRoute

from lithify.http.blobs import admin as blob_admin
from lithify.http.blobs import replication as blob_replication
from lithify.http.blobs import stores_and_blobs
from lithify.http.blobs.fast_get import FastGet
from lithify.node.server import listen_for_http
from tests.http.test_blobs import Photos

if TYPE_CHECKING:
    from collections.abc import Iterator

ROUTERS = blob_admin.router, blob_replication.router, stores_and_blobs.router


@pytest.fixture
def node() -> Iterator[Photos]:
    with Photos() as node:
        yield node


def test_both_ways_give_the_same_answer(node: Photos) -> None:
    here, gone = node.put(bytes(70_000), x_lithify_um_of="rock"), node.put(b"gone")
    node.ask("DELETE", gone)
    tag = node.ask("GET", here).headers["ETag"]
    asked = [
        (here, {}, 200),
        (here, {"Range": "bytes=10-20"}, 206),
        (here, {"Range": "bytes=70000-"}, 416),
        (here, {"If-None-Match": tag}, 304),
        (here, {"If-Match": '"other"'}, 412),
        (gone, {}, 410),
        (f"{node.at}/never", {}, 404),
        ("/blobs/nowhere/never", {}, 404),
        (f"{node.at}/%ff", {}, 400),
    ]
    for path, headers, status in asked:
        short = node.ask("GET", path, headers=headers)
        long = node.ask("GET", f"{path}?include=none", headers=headers)
        assert short.status_code == status
        assert (short.status_code, short.headers, short.content) == (
            long.status_code,
            long.headers,
            long.content,
        )


def test_words_of_other_routes_are_not_taken_for_ids(node: Photos) -> None:
    routes = [route for router in ROUTERS for route in router.routes]
    paths = [
        route.path.replace("{store}", "photos")
        for route in routes
        if isinstance(route, APIRoute)
        and "GET" in (route.methods or ())
        and "{blob_id}" not in route.path
    ]
    assert len(paths) > 5
    for path in paths:
        answer = node.ask("GET", path)
        assert (answer.status_code, answer.headers["Content-Type"]) == (200, "application/json")


def test_it_takes_a_plain_get_of_a_blob_and_nothing_else() -> None:
    short = FastGet(ROUTERS)

    def takes(path: str, method: str = "GET", query: bytes = b"", kind: str = "http") -> bool:
        scope = {"type": kind, "method": method, "path": path, "query_string": query}
        match, child = short.matches(scope)
        return bool(match.value) and child["path_params"] == {"store": "photos", "blob_id": "1"}

    assert takes("/blobs/photos/1")
    assert not takes("/blobs/photos/1", query=b"include=all")
    assert not takes("/blobs/photos/1", method="HEAD")
    assert not takes("/blobs/photos/1", kind="websocket")
    for path in ("/blobs/photos", "/blobs/photos/", "/blobs//1", "/blobs/photos/1/info"):
        assert not takes(path)
    assert not takes("/topics/photos/1")
    assert not takes("/blobs/photos/list")


def test_a_body_does_not_wait_until_the_headers_are_acknowledged() -> None:
    """A client may take 40 ms to acknowledge: it would wait as long for every small blob."""
    with (
        listen_for_http("127.0.0.1", 0) as listening,
        socket.create_connection(listening.getsockname()),
        listening.accept()[0] as accepted,
    ):
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
