"""Blobs over HTTP: stores, contents, headers, conditions, ranges, refusals, compaction."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from lithify.blobs.settings import DAY_MS
from tests.cli.nodes import served
from tests.http.node import HttpNode
from tests.patience import PROCESS_S_MAX

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from tests.cli.nodes import Served

SHAPE = {"capacity_bytes": 2**20, "segment_bytes": 2**17}


class Photos(HttpNode):
    """A node with one store, and what is asked of it."""

    def __init__(self) -> None:
        super().__init__()
        self.at = "/blobs/photos"
        assert self.ask("PUT", self.at, json=SHAPE).status_code == 201

    def put(self, content: bytes, **headers: str) -> str:
        """The path of a new blob."""
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        answer = self.ask("POST", self.at, content=content, headers=given)
        assert answer.status_code == 201, answer.text
        assert answer.headers["Location"] == f"{self.at}/{answer.json()['id']}"
        return str(answer.headers["Location"])

    def reason(self, status: int, method: str, path: str, **more: Any) -> str:
        """Why a request is refused."""
        answer = self.ask(method, path, **more)
        assert answer.status_code == status, answer.text
        return str(answer.json()["reason"])


@pytest.fixture
def node() -> Iterator[Photos]:
    with Photos() as node:
        yield node


# --- stores -----------------------------------------------------------------------------------


def test_a_store_is_created_once_listed_and_deleted(node: Photos) -> None:
    assert "already exists" in node.reason(409, "PUT", node.at, json=SHAPE)
    [row] = node.ask("GET", "/blobs").json()
    assert row == node.ask("GET", node.at).json()
    assert row == {
        "store": "photos",
        "namespace": "public/default",
        **SHAPE,
        "created_ms": node.clock.now_ms(),
        "settings": {},
        "used_bytes": row["used_bytes"],
    }
    blob = node.put(b"x")
    assert node.ask("DELETE", node.at).status_code == 204
    assert "does not exist" in node.reason(404, "GET", blob)
    assert "does not exist" in node.reason(404, "DELETE", node.at)
    assert node.ask("PUT", node.at, json=SHAPE).status_code == 201
    assert "not in the store" in node.reason(404, "GET", blob)


def test_compacting_a_store_of_one_segment_is_refused(node: Photos) -> None:
    one = {"capacity_bytes": 2**17, "segment_bytes": 2**17}
    answer = node.ask("PUT", "/blobs/one", json=one)
    assert "never be compacted" in answer.json()["warning"]
    assert "never be compacted" in node.reason(409, "POST", "/blobs/one/compaction")


def test_a_store_that_is_deleted_under_a_request_is_not_found(node: Photos) -> None:
    shape = {"capacity_bytes": 2**23, "segment_bytes": 2**22}
    assert node.ask("PUT", "/blobs/wide", json=shape).status_code == 201

    async def content(*, again: bool) -> Any:
        yield bytes(2**20)
        await node.asks("DELETE", "/blobs/wide")
        if again:
            await node.asks("PUT", "/blobs/wide", json=shape)
        yield bytes(2**20)

    for again in (True, False):
        told = node.reason(404, "POST", "/blobs/wide", content=content(again=again))
        assert told == "blob store wide was deleted during the request"
    assert node.blobs.names() == node.fs.list("data/blobs") == ["photos"]


def test_stores_are_listed_by_a_namespace_that_can_be(node: Photos) -> None:
    assert "'shop' must be tenant/namespace" in node.reason(400, "GET", "/blobs?namespace=shop")
    assert node.ask("GET", "/blobs?namespace=shop/eu").json() == []


def test_a_body_without_a_json_content_type_is_refused(node: Photos) -> None:
    body = json.dumps(SHAPE).encode()
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    assert "application/json" in node.reason(400, "PUT", "/blobs/x", content=body, headers=form)
    assert "application/json" in node.reason(400, "PUT", "/blobs/x", content=b"{}x")


@pytest.mark.parametrize("name", ["..", "%2e%2e%2fx", ".hidden", "a%2Fb", "a%20b", "%C3%A4"])
def test_no_name_of_a_store_leaves_the_data_directory(node: Photos, name: str) -> None:
    answer = node.ask("PUT", f"/blobs/{name}", json=SHAPE)
    assert answer.status_code in {400, 404, 405}, answer.text
    assert node.blobs.names() == ["photos"]
    assert node.fs.list("data/blobs") == ["photos"]


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ({"capacity_bytes": 2**20 + 1, "segment_bytes": 2**17}, "multiple of segment_bytes"),
        ({"capacity_bytes": 2**20, "segment_bytes": 1}, "segment_bytes"),
        ({"capacity_bytes": "1", "segment_bytes": 2**17}, "capacity_bytes"),
        ({"capacity_bytes": 2**20}, "segment_bytes"),
        (SHAPE | {"settings": {"colour": "red"}}, "colour"),
        (SHAPE | {"settings": {"policy": "some"}}, "policy"),
        (SHAPE | {"settings": {"deleted_retention_ms": "1"}}, "deleted_retention_ms"),
        (SHAPE | {"settings": {"budget": {"memory_bytes": -1}}}, "memory_bytes"),
        (SHAPE | {"name": "x"}, "name"),
    ],
)
def test_an_invalid_store_is_refused_by_name(
    node: Photos, body: dict[str, Any], named: str
) -> None:
    assert named in node.reason(400, "PUT", "/blobs/new", json=body)
    assert node.blobs.names() == ["photos"]


def test_a_namespace_with_a_store_cannot_be_removed(node: Photos) -> None:
    node.do("PUT", "/tenants/shop", {"allowedClusters": ["standalone"]})
    node.do("PUT", "/namespaces/shop/eu")
    answer = node.ask("PUT", "/blobs/shots?namespace=shop/eu", json=SHAPE)
    assert answer.json()["namespace"] == "shop/eu"
    assert [row["store"] for row in node.ask("GET", "/blobs?namespace=shop/eu").json()] == ["shots"]
    assert "shots" in node.refused(409, "DELETE", "/namespaces/shop/eu")
    assert "no/where" in node.reason(404, "PUT", "/blobs/x?namespace=no/where", json=SHAPE)
    assert node.blobs.names("shop/eu") == ["shots"]


# --- blobs ------------------------------------------------------------------------------------


def test_a_blob_is_returned_with_all_its_metadata(node: Photos) -> None:
    headers = {
        "x-lithify-service-id": "camera",
        "x-lithify-owner-id": "ann",
        "x-lithify-content-type": "image/png",
        "x-lithify-um-Place": "Köln",
        "x-lithify-ttl": "60",
    }
    encoded = [(name, value.encode()) for name, value in headers.items()]
    answer = node.ask("POST", node.at, content=b"pixels", headers=encoded)
    blob = answer.headers["Location"]
    for method, content in (("GET", b"pixels"), ("HEAD", b"")):
        found = node.ask(method, blob)
        assert (found.status_code, found.content) == (200, content)
        assert found.headers["Content-Length"] == "6"
        assert found.headers["Content-Type"] == "image/png"
        assert found.headers["ETag"] == answer.headers["ETag"]
        raw = dict(found.headers.raw)
        for name, value in headers.items():
            assert raw[name.lower().encode()] == value.encode()
    info = node.ask("GET", f"{blob}/info").json()
    assert info == answer.json()
    assert (info["size"], info["metadata"], info["ttl"]) == (6, {"place": "Köln"}, 60)


def test_without_headers_a_blob_is_bytes_for_ever(node: Photos) -> None:
    found = node.ask("GET", node.put(b""))
    assert (found.status_code, found.content) == (200, b"")
    assert found.headers["Content-Type"] == "application/octet-stream"
    assert found.headers["x-lithify-ttl"] == "-1"


def test_deleted_expired_and_unknown_are_different_answers(node: Photos) -> None:
    both = deleted, expired = node.put(b"d"), node.put(b"e", x_lithify_ttl="1")
    answer = node.ask("DELETE", deleted)
    assert (answer.status_code, answer.json()) == (202, {"id": deleted.rpartition("/")[2]})
    node.clock.advance(2)
    for method in ("GET", "DELETE"):
        assert "is deleted" in node.reason(410, method, deleted)
        assert "is expired" in node.reason(410, method, expired)
        assert "not in the store" in node.reason(404, method, f"{node.at}/unknown")
    assert node.ask("HEAD", deleted).status_code == node.ask("HEAD", expired).status_code == 410
    seen = {
        include: [node.ask("GET", f"{each}?include={include}").status_code for each in both]
        for include in ("none", "expired", "deleted", "all")
    }
    assert seen == {
        "none": [410, 410],
        "expired": [410, 200],
        "deleted": [200, 410],
        "all": [200, 200],
    }
    assert "include" in node.reason(400, "GET", f"{deleted}?include=some")


def test_a_delete_is_undone_within_the_retention(node: Photos) -> None:
    blob = node.put(b"x")
    assert "is not deleted" in node.reason(409, "PUT", f"{blob}/undelete")
    node.ask("DELETE", blob)
    assert node.ask("PUT", f"{blob}/undelete").status_code == 200
    assert node.ask("GET", blob).content == b"x"
    node.ask("DELETE", blob)
    node.clock.advance(7 * DAY_MS / 1000 + 1)
    assert "retention" in node.reason(410, "PUT", f"{blob}/undelete")


def test_the_time_to_live_is_set_by_header_or_body(node: Photos) -> None:
    blob = node.put(b"x")
    assert node.ask("PUT", f"{blob}/ttl", json={"ttl": 10}).status_code == 200
    assert node.ask("HEAD", blob).headers["x-lithify-ttl"] == "10"
    assert node.ask("PUT", f"{blob}/ttl", headers={"x-lithify-ttl": "-1"}).json() == {
        "id": blob.rpartition("/")[2],
        "expiry_ms": None,
    }
    node.clock.advance(11)
    assert node.ask("GET", blob).status_code == 200
    for more in ({}, {"json": {"ttl": 1}, "headers": {"x-lithify-ttl": "1"}}):
        assert "once" in node.reason(400, "PUT", f"{blob}/ttl", **more)
    for ttl in ("0", "-0", "-2", "soon", "1.5", "1_0", "", "9" * 5000, str(2**50)):
        assert "ttl" in node.reason(400, "PUT", f"{blob}/ttl", headers={"x-lithify-ttl": ttl})
        assert "ttl" in node.reason(400, "POST", node.at, headers={"x-lithify-ttl": ttl})
    assert "ttl" in node.reason(400, "PUT", f"{blob}/ttl", json={"ttl": "x"})


@pytest.mark.parametrize(
    ("headers", "named"),
    [
        ([("x-lithify-um-a", b"\xff")], "UTF-8"),
        ([("x-lithify-um-a", b"1"), ("x-lithify-um-a", b"2")], "twice"),
        ([("x-lithify-um-", b"1")], "without a name"),
        ([("x-lithify-colour", b"1")], "is unknown: blobs have no such header"),
        ([("x-lithify-service-id", b"s" * 2000)], "service"),
        ([("x-lithify-um-a", b"m" * 20_000)], "metadata"),
    ],
)
def test_an_invalid_header_is_refused_by_name(
    node: Photos, headers: list[tuple[str, bytes]], named: str
) -> None:
    assert named in node.reason(400, "POST", node.at, content=b"x", headers=headers)
    assert node.ask("GET", f"{node.at}/list").json() == {"blobs": [], "next": None}


def test_too_large_and_full_are_refused_and_a_full_store_can_be_emptied(node: Photos) -> None:
    large = bytes(2**17)
    assert "larger than a segment" in node.reason(413, "POST", node.at, content=large)

    async def stream() -> Any:
        for _ in range(40):
            yield bytes(4096)

    assert "larger than a segment" in node.reason(413, "POST", node.at, content=stream())
    blobs = []
    while (answer := node.ask("POST", node.at, content=bytes(100_000))).status_code == 201:
        blobs.append(answer.headers["Location"])
    assert answer.status_code == 507
    assert "no room" in answer.json()["reason"]
    assert all(node.ask("DELETE", each).status_code == 202 for each in blobs)


def test_the_blobs_of_a_store_are_listed_page_by_page(node: Photos) -> None:
    blobs = [node.put(b"%d" % number).rpartition("/")[2] for number in range(5)]
    node.ask("DELETE", f"{node.at}/{blobs[2]}")
    found: list[str] = []
    after: int | None = -1
    while after is not None:
        page = node.ask("GET", f"{node.at}/list?limit=2&after={after}").json()
        found += [row["id"] for row in page["blobs"]]
        after = page["next"]
    assert found == blobs[:2] + blobs[3:]
    every = node.ask("GET", f"{node.at}/list?include=deleted").json()["blobs"]
    assert [row["id"] for row in every if row["deleted"]] == [blobs[2]]


# --- ranges and conditions --------------------------------------------------------------------

CONTENT = bytes(range(256)) * 400


@pytest.mark.parametrize(
    ("wanted", "start", "stop"),
    [
        ("bytes=0-0", 0, 1),
        ("bytes=5-9", 5, 10),
        ("bytes=65530-65545", 65530, 65546),
        ("bytes=102000-", 102_000, 102_400),
        ("bytes=102000-999999", 102_000, 102_400),
        ("bytes=-5", 102_395, 102_400),
        ("bytes=-999999", 0, 102_400),
        ("Bytes = 5 - 9", 5, 10),
        (f"bytes=5-{10**30}", 5, 102_400),
        (f"bytes=-{10**30}", 0, 102_400),
    ],
)
def test_a_range_is_answered_with_206(node: Photos, wanted: str, start: int, stop: int) -> None:
    found = node.ask("GET", node.put(CONTENT), headers={"Range": wanted})
    assert (found.status_code, found.content) == (206, CONTENT[start:stop])
    assert found.headers["Content-Range"] == f"bytes {start}-{stop - 1}/102400"
    assert found.headers["Content-Length"] == str(stop - start)


@pytest.mark.parametrize("wanted", ["bytes=102400-", "bytes=-0", f"bytes={10**30}-"])
def test_a_range_outside_is_answered_with_416(node: Photos, wanted: str) -> None:
    answer = node.ask("GET", node.put(CONTENT), headers={"Range": wanted})
    assert (answer.status_code, answer.headers["Content-Range"]) == (416, "bytes */102400")


@pytest.mark.parametrize(
    "wanted", ["bytes=1-2,5-6", "bytes=9-5", "lines=1-2", "bytes=-", "bytes=x"]
)
def test_an_invalid_range_header_is_ignored(node: Photos, wanted: str) -> None:
    answer = node.ask("GET", node.put(CONTENT), headers={"Range": wanted})
    assert (answer.status_code, answer.content) == (200, CONTENT)


def test_conditions_are_judged_by_the_tag(node: Photos) -> None:
    blob = node.put(CONTENT)
    tag = node.ask("HEAD", blob).headers["ETag"]
    for method in ("GET", "HEAD"):
        for known in (tag, f'"other", {tag}', f"W/{tag}", "*"):
            answer = node.ask(method, blob, headers={"If-None-Match": known})
            assert (answer.status_code, answer.content) == (304, b"")
            assert answer.headers["ETag"] == tag
        assert node.ask(method, blob, headers={"If-None-Match": '"other"'}).status_code == 200
        assert node.ask(method, blob, headers={"If-Match": tag}).status_code == 200
        for other in ('"other"', f"W/{tag}"):
            assert node.ask(method, blob, headers={"If-Match": other}).status_code == 412
    part = {"Range": "bytes=0-9"}
    assert node.ask("GET", blob, headers={**part, "If-Range": tag}).content == CONTENT[:10]
    assert node.ask("GET", blob, headers={**part, "If-Range": '"other"'}).content == CONTENT


def test_a_time_to_live_starts_when_the_content_is_complete(node: Photos) -> None:
    async def slowly() -> AsyncIterator[bytes]:
        yield b"x" * 50_000
        node.clock.advance(5)
        yield b"y" * 50_000

    for content in (slowly(), b"at once"):
        answer = node.ask("POST", node.at, content=content, headers={"x-lithify-ttl": "1"})
        assert answer.status_code == 201, answer.text
        assert answer.json()["ttl"] == 1
        blob = answer.headers["Location"]
        node.clock.advance(1)
        assert node.ask("GET", blob).status_code == 200, "not before its time"
        node.clock.advance(0.001)
        assert node.ask("GET", blob).status_code == 410


# --- compaction, statistics, metrics ----------------------------------------------------------


def finished(node: Photos) -> dict[str, Any]:
    while True:
        found: dict[str, Any] = node.ask("GET", f"{node.at}/compaction").json()
        if found["status"] != "RUNNING":
            return found


def test_a_store_is_compacted_on_request_and_its_space_is_freed(node: Photos) -> None:
    blobs = [node.put(bytes(60_000)) for _ in range(10)]
    for each in blobs[:8]:
        node.ask("DELETE", each)
    node.clock.advance(8 * DAY_MS / 1000)
    planned = node.ask("POST", f"{node.at}/compaction", json={"dry_run": True, "policy": "all"})
    assert planned.status_code == 200
    assert "policy all" in planned.json()["text"]
    assert finished(node)["status"] == "NOT_RUN"
    stats = node.ask("GET", f"{node.at}/statistics").json()
    assert stats["reclaimable_bytes"] > 8 * 60_000 - 2**17
    assert "forecast" not in stats
    assert node.ask("GET", f"{node.at}/statistics?forecast=true").json()["forecast"]
    used_bytes = node.ask("GET", node.at).json()["used_bytes"]
    answer = node.ask("POST", f"{node.at}/compaction?policy=all")
    assert (answer.status_code, answer.json()["store"]) == (202, "photos")
    found = finished(node)
    assert (found["status"], found["report"]["result"]) == ("SUCCESS", "done")
    assert node.ask("GET", node.at).json()["used_bytes"] < used_bytes - 6 * 60_000
    [report] = node.ask("GET", f"{node.at}/compaction/history").json()
    assert report["reclaimed_bytes"] > 0
    assert node.ask("GET", blobs[-1]).content == bytes(60_000)
    metrics = node.ask("GET", "/metrics").text
    assert 'lithify_blobs_compaction_runs_total{result="done",store="photos"} 1.0' in metrics
    assert 'lithify_blobs_capacity_bytes{store="photos"} 1.048576e+06' in metrics
    assert "lithify_blobs_valid_bytes" in metrics
    assert 'lithify_blobs_operation_seconds_count{operation="put",store="photos"} 10.0' in metrics
    assert "policy" in node.reason(400, "POST", f"{node.at}/compaction?policy=some")
    assert "no run" in node.reason(409, "DELETE", f"{node.at}/compaction")
    erase = node.ask("GET", f"{node.at}/erase").json()
    assert (erase["store"], erase["paused"]) == ("photos", False)


def test_all_routes_are_described(node: Photos) -> None:
    paths = node.ask("GET", "/openapi.json").json()["paths"]
    assert {"get", "head", "delete"} <= set(paths["/blobs/{store}/{blob_id}"])
    assert {"put", "get", "delete", "post"} == set(paths["/blobs/{store}"])
    assert {"post", "get", "delete"} == set(paths["/blobs/{store}/compaction"])


# --- over sockets -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("data")) as node:
        shape = {"capacity_bytes": 2**28, "segment_bytes": 2**26}
        assert httpx.put(f"{node.http}/blobs/photos", json=shape).status_code == 201
        yield node


def blobs_in(node: Served) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = httpx.get(f"{node.http}/blobs/photos/list").json()["blobs"]
    return found


def port_of(node: Served) -> int:
    return int(node.http.rpartition(":")[2])


def memory_bytes(node: Served) -> int:
    with open(f"/proc/{node.process.pid}/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_large_contents_are_streamed_both_ways(real: Served) -> None:
    before_bytes = 0
    # A few pieces are the cost of any client; twelve times as much costs no more.
    for mebibytes in (5, 60):
        content = os.urandom(2**20) * mebibytes
        pieces = (content[at : at + 100_000] for at in range(0, len(content), 100_000))
        answer = httpx.post(f"{real.http}/blobs/photos", content=pieces)
        assert answer.status_code == 201
        blob = f"{real.http}{answer.headers['Location']}"
        assert httpx.get(blob).content == content
        part = httpx.get(blob, headers={"Range": "bytes=1000000-4000000"})
        assert (part.status_code, part.content) == (206, content[1_000_000:4_000_001])
        before_bytes = before_bytes or memory_bytes(real)
    assert memory_bytes(real) - before_bytes < 30 * 2**20


def test_a_client_that_leaves_in_the_middle_has_put_nothing(real: Served) -> None:
    before = blobs_in(real)
    for sent in (1000, 3 * 2**20):
        with socket.create_connection(("127.0.0.1", port_of(real))) as connection:
            head = b"POST /blobs/photos HTTP/1.1\r\nHost: x\r\nContent-Length: 5000000\r\n\r\n"
            connection.sendall(head + bytes(sent))
    # Its thread is free again when the next one of as many has been answered.
    for _ in range(3):
        answer = httpx.post(f"{real.http}/blobs/photos", content=bytes(3 * 2**20))
        httpx.delete(f"{real.http}{answer.headers['Location']}")
    assert blobs_in(real) == before


def test_clients_that_do_not_read_cost_little_and_delay_no_other(real: Served) -> None:
    answer = httpx.post(f"{real.http}/blobs/photos", content=bytes(20 * 2**20))
    request = f"GET {answer.headers['Location']} HTTP/1.1\r\nHost: x\r\n\r\n".encode()
    before_bytes = memory_bytes(real)
    slow = []
    for _ in range(20):
        connection = socket.create_connection(("127.0.0.1", port_of(real)))
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.sendall(request)
        assert connection.recv(12) == b"HTTP/1.1 200"
        slow.append(connection)
    assert httpx.get(f"{real.http}{answer.headers['Location']}").status_code == 200
    assert memory_bytes(real) - before_bytes < 20 * 5 * 2**20
    for connection in slow:
        connection.close()


def test_a_too_large_content_is_refused_before_it_is_sent(real: Served) -> None:
    with socket.create_connection(("127.0.0.1", port_of(real))) as connection:
        head = b"Host: x\r\nContent-Length: 99999999999\r\nExpect: 100-continue\r\n\r\n"
        connection.sendall(b"POST /blobs/photos HTTP/1.1\r\n" + head)
        assert connection.recv(12) == b"HTTP/1.1 413"


def test_answered_commands_survive_a_kill(tmp_path: Path) -> None:
    with served(tmp_path) as node:
        shape = {"capacity_bytes": 2**24, "segment_bytes": 2**20}
        # No run by itself: the node would start a Spark session, and wait for it when it ends.
        settings = {"deleted_retention_ms": 1000, "policy": "stats", "triggers": ["admin"]}
        with httpx.Client(base_url=node.http) as client:
            client.put("/blobs/photos", json=shape | {"settings": settings})
            contents = [bytes([number]) * 100_000 for number in range(15)]
            blobs = [client.post("/blobs/photos", content=content) for content in contents]
            node.end(signal.SIGKILL)
    with served(tmp_path) as node, httpx.Client(base_url=node.http) as client:
        row = client.get("/blobs/photos").json()
        assert row["settings"] == settings
        for content, answer in zip(contents, blobs, strict=True):
            assert client.get(answer.headers["Location"]).content == content
        # A client in the middle of a put does not keep the node from ending.
        with socket.create_connection(("127.0.0.1", port_of(node))) as connection:
            head = b"POST /blobs/photos HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
            connection.sendall(head + b"180000\r\n" + bytes(0x170000))
            assert client.get("/blobs/photos").status_code == 200
            assert node.end(signal.SIGTERM)[0] == 0


def test_many_clients_put_at_once(real: Served) -> None:
    async def put(client: httpx.AsyncClient, number: int) -> None:
        content = number.to_bytes(4, "big") * 20_000
        answer = await client.post("/blobs/photos", content=content)
        found = await client.get(answer.headers["Location"])
        assert found.content == content, json.dumps(dict(found.headers))

    async def story() -> None:
        async with httpx.AsyncClient(base_url=real.http, timeout=PROCESS_S_MAX) as client:
            await asyncio.gather(*(put(client, number) for number in range(100)))

    asyncio.run(story())
