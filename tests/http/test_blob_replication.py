"""What replicas of a blob store ask each other over HTTP, and what they refuse."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from lithify.blobs.replication_stream import Chunks, read_records
from lithify.blobs.replication_values import Changes
from tests.http.test_blobs import Photos

if TYPE_CHECKING:
    from collections.abc import Iterator

REPLICA = "ab" * 12
PEER = "http://127.0.0.1:1/blobs/photos"


@pytest.fixture
def node() -> Iterator[Photos]:
    with Photos() as node:
        yield node


def test_replicas_are_set_and_told(node: Photos) -> None:
    assert node.ask("GET", f"{node.at}/replicas").json() == []
    assert node.ask("PUT", f"{node.at}/replicas", json=[PEER + "/"]).json() == [PEER]
    assert node.blobs.get("photos").replication.peers == (PEER,)
    assert "'ftp://x'" in node.reason(400, "PUT", f"{node.at}/replicas", json=["ftp://x"])
    assert "list" in node.reason(400, "PUT", f"{node.at}/replicas", json={"a": 1})


def test_a_replica_reads_changes_and_contents(node: Photos) -> None:
    paths = [node.put(b"x" * size) for size in (0, 10, 100_000)]
    ids = [path.rpartition("/")[2] for path in paths]
    assert node.ask("DELETE", paths[0]).status_code == 202
    asked: dict[str, object] = {"replica": REPLICA, "token": None, "limit": 2}
    answer = node.ask("POST", f"{node.at}/replication/changes", json=asked)
    first = Changes.from_json(answer.json())
    assert [change.blob_id for change in first.changes] == ids[1:]
    assert first.more
    asked["token"] = first.token.to_row()
    answer = node.ask("POST", f"{node.at}/replication/changes", json=asked)
    rest = Changes.from_json(answer.json())
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
def test_nonsense_is_refused(node: Photos, body: object) -> None:
    assert node.reason(400, "POST", f"{node.at}/replication/changes", json=body)


def test_a_token_that_cannot_be_begins_anew(node: Photos) -> None:
    node.put(b"")
    log_id = node.blobs.get("photos").replication.replica
    for token in ([log_id, -1, "", 0, 0], [log_id, 10**30, "", 0, 0], [log_id, 0, "", 999, 0]):
        asked = {"replica": REPLICA, "token": token}
        page = node.ask("POST", f"{node.at}/replication/changes", json=asked).json()
        assert (len(page["changes"]), page["reset"]) == (1, True)


def test_a_blob_that_is_nowhere_is_not_found(node: Photos) -> None:
    assert node.ask("PUT", f"{node.at}/replicas", json=[PEER]).status_code == 200
    assert "nobody" in node.reason(404, "GET", f"{node.at}/nobody")
