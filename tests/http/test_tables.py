"""Tables over HTTP: definitions, rows, pages, transactions, and what is refused."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.http.cluster_node import ClusterNode
from tests.patience import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ORDERS = {
    "name": "orders",
    "columns": [
        {"name": "id", "type": "int32"},
        {"name": "note", "type": "string", "nullable": True},
    ],
    "key": ["id"],
}


@pytest.fixture
def node(tmp_path: Path) -> Iterator[ClusterNode]:
    with ClusterNode(tmp_path) as opened:
        opened.call("POST", "/catalog/apply", content="[zones.z]\npartitions = 3\n")
        opened.call("POST", "/tables", json=ORDERS | {"zone": "z"})
        yield opened


def put(node: ClusterNode, *numbers: int, note: str = "n", tx: str = "") -> None:
    lines = "".join(json.dumps({"id": number, "note": note}) + "\n" for number in numbers)
    headers = {"content-type": "application/x-ndjson"}
    path = "/tables/orders/rows" + (f"?tx={tx}" if tx else "")
    assert node.call("POST", path, content=lines, headers=headers) == {"put": len(numbers)}


def row(node: ClusterNode, number: int, more: str = "") -> Any:
    return node.call("GET", f'/tables/orders/row?key={{"id":{number}}}{more}')


def test_a_table_is_listed_shown_changed_and_dropped(node: ClusterNode) -> None:
    assert [each["name"] for each in node.call("GET", "/tables")] == ["orders"]
    change = {"add": [{"name": "more", "type": "int8", "default": 3}], "drop": ["note"]}
    assert node.call("POST", "/tables/orders/columns", json=change)["changed"]
    alter = {"alter": [{"name": "more", "type": "int16"}]}
    node.call("POST", "/tables/orders/columns", json=alter)
    shown = node.call("GET", "/tables/orders")
    assert shown["columns"] == [
        {"name": "id", "type": "int32", "nullable": False, "default": None},
        {"name": "more", "type": "int16", "nullable": False, "default": 3},
    ]
    assert (shown["zone"], shown["partitions"], shown["key"]) == ("z", 3, ["id"])
    node.call("DELETE", "/tables/orders")
    assert node.call("GET", "/tables") == []
    assert node.refused(404, "DELETE", "/tables/orders")[0] == "ObjectNotFound"


def test_rows_are_put_read_and_deleted(node: ClusterNode) -> None:
    assert node.call("POST", "/tables/orders/rows", json={"id": 1, "note": "é"}) == {"put": 1}
    assert row(node, 1) == {"id": 1, "note": "é"}
    node.call("DELETE", '/tables/orders/row?key={"id":1}')
    assert node.refused(404, "GET", '/tables/orders/row?key={"id":1}')[0] == "RowNotFound"


def test_all_rows_are_read_in_pages_and_as_lines_of_one_moment(node: ClusterNode) -> None:
    put(node, *range(50))
    found: list[int] = []
    more = ""
    while True:
        page = node.call("GET", f"/tables/orders/rows?limit=7{more}")
        found += [each["id"] for each in page["rows"]]
        put(node, 100 + len(found))
        if page["next"] is None:
            break
        more = f"&cursor={page['next']}"
    assert sorted(found) == list(range(50))
    answer = node.ask("GET", "/tables/orders/rows", headers={"accept": "application/x-ndjson"})
    assert len(answer.text.splitlines()) == 50 + 8
    assert len(node.call("GET", f"/tables/orders/rows?at={page['timestamp']}")["rows"]) == 50


def test_a_transaction_is_committed_or_rolled_back(node: ClusterNode) -> None:
    begun = node.call("POST", "/tables/transactions", json={})
    put(node, 1, tx=begun["id"])
    assert row(node, 1, f"&tx={begun['id']}")["id"] == 1
    node.refused(404, "GET", '/tables/orders/row?key={"id":1}')
    node.call("POST", f"/tables/transactions/{begun['id']}/commit")
    assert row(node, 1)["id"] == 1
    again = node.call("POST", "/tables/transactions", json={})
    node.call("DELETE", f'/tables/orders/row?key={{"id":1}}&tx={again["id"]}')
    node.call("POST", f"/tables/transactions/{again['id']}/rollback")
    assert row(node, 1)["id"] == 1
    path = f"/tables/transactions/{again['id']}/commit"
    assert node.refused(404, "POST", path)[0] == "TransactionEnded"


def test_a_conflict_is_refused(node: ClusterNode) -> None:
    put(node, 1)
    begun = [node.call("POST", "/tables/transactions", json={})["id"] for _ in range(2)]
    for tx in begun:
        row(node, 1, f"&tx={tx}")
        put(node, 1, note=tx, tx=tx)
    node.call("POST", f"/tables/transactions/{begun[0]}/commit")
    path = f"/tables/transactions/{begun[1]}/commit"
    assert node.refused(409, "POST", path)[0] == "TransactionConflict"


def test_an_index_finds_rows_when_it_is_available(node: ClusterNode) -> None:
    put(node, 1, 2, note="a")
    put(node, 3, note="b")
    node.call("PUT", "/tables/orders/indexes/by_note", json={"columns": ["note"]})

    def status() -> str:
        return str(node.call("GET", "/tables/orders")["indexes"][0]["status"])

    wait_until(lambda: status() == "available")
    path = '/tables/orders/rows?index=by_note&prefix={"note":"a"}'
    assert [each["id"] for each in node.call("GET", path)["rows"]] == [1, 2]
    node.call("DELETE", "/tables/orders/indexes/by_note")
    assert node.refused(404, "GET", path)[0] == "ObjectNotFound"


@pytest.mark.parametrize(
    ("method", "path", "more", "status", "error"),
    [
        ("POST", "/tables/orders/rows", {"json": {"id": "x"}}, 400, "InvalidRow"),
        ("POST", "/tables/orders/rows", {"content": "[1]"}, 400, "InvalidInput"),
        ("POST", "/tables/orders/rows", {"content": "{"}, 400, "InvalidInput"),
        ("POST", "/tables/none/rows", {"json": {"id": 1}}, 404, "ObjectNotFound"),
        ("GET", "/tables/orders/row?key=7", {}, 400, "InvalidInput"),
        ("GET", '/tables/orders/row?key={"note":"a"}', {}, 400, "InvalidRow"),
        ("GET", '/tables/orders/row?key={"id":1}&at=1', {}, 410, "TimeTooOld"),
        ("GET", '/tables/orders/rows?prefix={"colour":1}', {}, 400, "InvalidRow"),
        ("GET", "/tables/orders/rows?cursor=zzz", {}, 400, "InvalidInput"),
        ("GET", "/tables/orders/rows?index=none", {}, 404, "ObjectNotFound"),
        ("POST", "/tables", {"json": ORDERS}, 409, "ObjectExists"),
        ("POST", "/tables/transactions/n1.00/commit", {}, 404, "TransactionEnded"),
        ("POST", "/tables/transactions/n9.00/commit", {}, 404, "TransactionEnded"),
        ("POST", "/tables/transactions", {"json": {"at": "1"}}, 400, "InvalidInput"),
    ],
)
def test_invalid_requests_are_refused_with_their_reason(
    node: ClusterNode, method: str, path: str, more: dict[str, Any], status: int, error: str
) -> None:
    assert node.refused(status, method, path, **more)[0] == error


def test_lines_of_many_pages_are_of_one_moment_and_release_what_they_hold(
    node: ClusterNode,
) -> None:
    for start in range(0, 2500, 500):
        put(node, *range(start, start + 500))
    answer = node.ask("GET", "/tables/orders/rows", headers={"accept": "application/x-ndjson"})
    found = sorted(json.loads(line)["id"] for line in answer.text.splitlines())
    assert found == list(range(2500))
    tables = node.node.cluster.tables
    assert tables is not None
    assert tables.handles.count == 0


def test_the_description_of_the_routes_has_tables(node: ClusterNode) -> None:
    paths = node.call("GET", "/openapi.json")["paths"]
    assert {"/tables", "/tables/{table}/rows", "/tables/transactions"} <= paths.keys()
