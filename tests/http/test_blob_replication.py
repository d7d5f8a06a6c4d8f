"""What replicas of a blob store ask each other over HTTP, and what they refuse."""

from __future__ import annotations

from typing import TYPE_CHECKING

import httpx
import pytest

from lithify.blobs.replication.blob_stream import read_records
from lithify.blobs.replication.peers import BlobPeer, BlobPeers
from lithify.blobs.replication.replicator import PeerStatus
from lithify.blobs.replication.tokens_and_pages import BlobChanges
from tests.cli.nodes import served_here
from tests.http.test_blobs import Photos
from tests.unit.blobs.replicas import Chunks

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

REPLICA = "ab" * 12
PEER = "http://127.0.0.1:1/blobs/photos"


@pytest.fixture
def node() -> Iterator[Photos]:
    with Photos() as node:
        node.blobs.peers = BlobPeers([BlobPeer("other", "http://127.0.0.1:1")])
        yield node


def test_replicas_are_set_and_listed(node: Photos) -> None:
    assert node.ask("GET", f"{node.at}/replicas").json() == []
    assert node.ask("PUT", f"{node.at}/replicas", json=[PEER + "/"]).json() == [PEER]
    assert node.blobs.get("photos").replication.peers == (PEER,)
    for named in ("other", "other/photos"):
        assert node.ask("PUT", f"{node.at}/replicas", json=[named]).json() == [PEER]
    for strange in (
        "ftp://x",
        "http://127.0.0.1:1/blobs/..",
        "http://127.0.0.1:10/blobs/photos",
        "http://127.0.0.1:1@x/blobs/photos",
        "http://127.0.0.1:1/admin",
        "other/../admin",
        "some",
        "http://127.0.0.1:1/x/blobs/photos",
        "http://127.0.0.1:1/blobs/photos?x",
    ):
        node.reason(400, "PUT", f"{node.at}/replicas", json=[strange])
    assert "other (http://127.0.0.1:1)" in node.reason(
        400, "PUT", f"{node.at}/replicas", json=["ftp://x"]
    )
    assert "list" in node.reason(400, "PUT", f"{node.at}/replicas", json={"a": 1})


def test_a_replica_reads_changes_and_contents(node: Photos) -> None:
    paths = [node.put(b"x" * size) for size in (0, 10, 100_000)]
    ids = [path.rpartition("/")[2] for path in paths]
    assert node.ask("DELETE", paths[0]).status_code == 202
    asked: dict[str, object] = {"replica": REPLICA, "token": None, "limit": 2}
    answer = node.ask("POST", f"{node.at}/replication/changes", json=asked)
    first = BlobChanges.from_json(answer.json())
    assert [change.blob_id for change in first.changes] == ids[1:]
    assert first.more
    asked["token"] = first.token.to_row()
    answer = node.ask("POST", f"{node.at}/replication/changes", json=asked)
    rest = BlobChanges.from_json(answer.json())
    assert [(change.blob_id, change.deleted) for change in rest.changes] == [(ids[0], True)]
    assert not rest.more
    answer = node.ask("POST", f"{node.at}/replication/records", json={"ids": [*ids, "nobody"]})
    found = {}
    for record, part in read_records(Chunks([answer.content])):
        pieces = []
        while part.left:
            pieces.append(part.read(2**20))
        found[record.put.blob_id] = b"".join(pieces)
    assert found == {ids[1]: b"x" * 10, ids[2]: b"x" * 100_000}
    answer = node.ask("POST", f"{node.at}/replication/unknown", json={"ids": [*ids, "nobody"]})
    assert answer.json() == {"unknown": ["nobody"]}


@pytest.mark.parametrize(
    "body",
    [
        [],
        {},
        {"replica": "x"},
        {"replica": REPLICA, "token": [1]},
        {"replica": REPLICA, "token": ["", 0, "", "", 0]},
        {"replica": REPLICA, "limit": 0},
        {"replica": REPLICA, "limit": 10**9},
    ],
)
def test_invalid_input_is_refused(node: Photos, body: object) -> None:
    assert node.reason(400, "POST", f"{node.at}/replication/changes", json=body)


def test_an_invalid_token_starts_from_the_beginning(node: Photos) -> None:
    node.put(b"")
    log_id = node.blobs.get("photos").replication.replica
    places = ([-1, "", 0], [10**30, "", 0], [0, "", 999])
    for token in ([log_id, *place, 0, -1] for place in places):
        asked = {"replica": REPLICA, "token": token}
        page = node.ask("POST", f"{node.at}/replication/changes", json=asked).json()
        assert (len(page["changes"]), page["reset"]) == (1, True)


def test_a_blob_that_is_nowhere_is_not_found(node: Photos) -> None:
    assert node.ask("PUT", f"{node.at}/replicas", json=[PEER]).status_code == 200
    assert "nobody" in node.reason(404, "GET", f"{node.at}/nobody")
    assert "nobody" in node.reason(404, "GET", f"{node.at}/nobody/info")


def test_a_head_and_the_info_are_answered_by_a_replica_as_a_get_is(tmp_path: Path) -> None:
    shape = {"capacity_bytes": 2**24, "segment_bytes": 2**22}
    with served_here(tmp_path / "a") as there, served_here(tmp_path / "b", peer=there) as here:
        for url in (there, here):
            assert httpx.put(f"{url}/blobs/photos", json=shape).status_code == 201
        # Nothing replicates in these nodes: what is there is not here.
        assert httpx.put(f"{here}/blobs/photos/replicas", json=[f"{there}/blobs/photos"]).is_success
        with httpx.Client(base_url=here) as client:
            content = bytes(3 * 2**20)
            put = httpx.post(f"{there}/blobs/photos", content=content)
            blob, tag = put.headers["Location"], put.headers["ETag"]
            found = {}
            for method in ("GET", "HEAD"):
                answer = client.request(method, blob)
                assert answer.content == (content if method == "GET" else b"")
                found[method] = {k: v for k, v in answer.headers.items() if k != "date"}
                given = {"If-None-Match": tag}
                assert client.request(method, blob, headers=given).status_code == 304
                given = {"If-Match": '"other"'}
                assert client.request(method, blob, headers=given).status_code == 412
                assert client.request(method, f"{blob}?replicas=false").status_code == 404
                assert client.request(method, f"{blob}x").status_code == 404
            assert found["GET"] == found["HEAD"]
            assert client.head(blob, headers={"Range": "bytes=0-9"}).status_code == 200
            info = client.get(f"{blob}/info")
            assert info.json() == httpx.get(f"{there}{blob}/info").json()
            assert client.get(f"{blob}/info?replicas=false").status_code == 404
            httpx.delete(f"{there}{blob}")
            assert client.head(blob).status_code == client.get(blob).status_code == 410
            assert client.get(f"{blob}/info").status_code == 410
            assert client.get(f"{blob}/info?include=deleted").json()["deleted"] is True


def test_replicas_are_measured(node: Photos) -> None:
    assert node.ask("PUT", f"{node.at}/replicas", json=[PEER]).status_code == 200
    replication = node.blobs.get("photos").replication
    status = PeerStatus(PEER, behind=7, content_bytes=300, errors=2)
    replication.status = lambda: [status]
    text = node.ask("GET", "/metrics").text
    labels = f'{{replica="{PEER}",store="photos"}}'
    for name, value in (("lag_entries", 7), ("pulled_bytes_total", 300), ("errors_total", 2)):
        assert f"lithify_blobs_replica_{name}{labels} {value}.0" in text
