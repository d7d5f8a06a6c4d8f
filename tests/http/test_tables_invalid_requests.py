"""Requests about tables that no client should send: each is refused by name."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Any

import pytest

from lithify.tables import active_transactions
from tests.http.cluster_node import ClusterNode

if TYPE_CHECKING:
    from collections.abc import Iterator

NDJSON = "application/x-ndjson"
TYPES = (
    ("i8", "int8"),
    ("f32", "float32"),
    ("f64", "float64"),
    ("b", "boolean"),
    ("d", "date"),
    ("tm", "time"),
    ("ts", "timestamp"),
    ("u", "uuid"),
    ("dec", "decimal(38,10)"),
    ("s", "string"),
    ("s5", "string(5)"),
    ("by", "bytes"),
)
TABLE = {
    "name": "t",
    "zone": "z",
    "columns": [
        {"name": "id", "type": "int32"},
        *({"name": name, "type": kind, "nullable": True} for name, kind in TYPES),
    ],
    "key": ["id"],
}
OTHER = {"name": "other", "zone": "z", "columns": [{"name": "id", "type": "int32"}], "key": ["id"]}


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterNode]:
    directory = tmp_path_factory.mktemp("node")
    with ClusterNode(directory, table_transaction_life_ms=3_600_000) as opened:
        opened.call("POST", "/catalog/apply", content="[zones.z]\npartitions = 2\n")
        opened.call("POST", "/tables", json=OTHER)
        opened.call("POST", "/tables", json=TABLE)
        opened.call("POST", "/tables/other/rows", json={"id": 1})
        opened.call("POST", "/tables/t/rows", json={"id": 0})
        yield opened


def refused(
    node: ClusterNode, status: int, named: str, method: str, path: str, **more: Any
) -> None:
    """A request is refused, and the reason has a text."""
    answer = node.ask(method, path, **more)
    assert answer.status_code == status, answer.text
    assert named in answer.json()["reason"]


def rows(node: ClusterNode) -> list[int]:
    return sorted(row["id"] for row in node.call("GET", "/tables/t/rows")["rows"])


WRONG: tuple[tuple[str, tuple[object, ...]], ...] = (
    ("id", ("1", 1.5, True, None, [], {}, 2**31, -(2**31) - 1, 10**4000)),
    ("i8", (128, -129, 1e400, "")),
    ("f32", (1e39, float("nan"), float("-inf"), "1", 10**400)),
    ("f64", (float("nan"), float("inf"), [1])),
    ("b", (0, "true", [])),
    ("d", ("2024-02-30", "10000-01-01", "", 5, "\ud800", "\0")),
    ("tm", ("24:00", "23:59:60", "12:00+01:00")),
    ("ts", ("0001-01-01T00:00:00+23:59", "x", 0)),
    ("u", ("1234", "g" * 32, 5)),
    ("dec", ("NaN", "inf", "1e-11", "1E+28", "1e999999999", 1)),
    ("s", ("\ud800", 1, ["x"])),
    ("s5", ("123456", "\ud800")),
    ("by", ("abc", "xx", 1)),
    ("absent", (1,)),
    ("\ud800", (1,)),
)


@pytest.mark.parametrize(
    ("column", "value"), [(column, value) for column, values in WRONG for value in values]
)
def test_a_value_of_another_type_than_its_column_is_refused(
    node: ClusterNode, column: str, value: object
) -> None:
    named = column if column.isprintable() else "table t"
    body = json.dumps({"id": 9, column: value})
    refused(node, 400, named, "POST", "/tables/t/rows", content=body)
    assert rows(node) == [0]


@pytest.mark.parametrize(
    ("body", "status", "named"),
    [
        (b"", 400, "a row is no JSON"),
        (b"[]", 400, "a row must be a JSON object"),
        (b'{"id":9} {"id":9}', 400, "Extra data"),
        (b'{"id":9,"s":"\xe9"}', 400, "'utf-8' codec can't decode"),
        ('{"id":9}'.encode("utf-16"), 400, "a row is no JSON"),
        (b'\xef\xbb\xbf{"id":9}', 400, "BOM"),
        (b'{"id":' + b"9" * 5000 + b"}", 400, "a row is no JSON"),
        (b'{"id":9,"s":' + b"[" * 3000 + b"]" * 3000 + b"}", 400, "recursion"),
        (b'{"id":9,"s":' + b"[" * 9000 + b"]" * 9000 + b"}", 413, "the limit is 5000"),
        (b'{"id":9,"s":"' + b"x" * 2**20 + b'"}', 413, "the limit, 1048576 bytes"),
        (b'{"id":9,"s":"' + b"x" * (2**20 - 20) + b'"}', 400, "a row has 1048"),
    ],
)
def test_a_body_that_is_no_row_is_refused(
    node: ClusterNode, body: bytes, status: int, named: str
) -> None:
    refused(node, status, named, "POST", "/tables/t/rows", content=body)
    assert rows(node) == [0]


def test_a_content_type_of_other_data_than_rows_is_refused(node: ClusterNode) -> None:
    for kind in ("text/csv", "application/x-www-form-urlencoded", "x" * 5000):
        headers = {"content-type": kind}
        named = f"content-type {kind:.80} must be application/json or {NDJSON}"
        refused(node, 415, named, "POST", "/tables/t/rows", content='{"id":9}', headers=headers)
    assert rows(node) == [0]
    for kind in ("Application/JSON; charset=utf-8", "APPLICATION/X-NDJSON ; charset=utf-8"):
        headers = {"content-type": kind}
        put = node.call("POST", "/tables/other/rows", content='{"id":2}\n', headers=headers)
        assert put == {"put": 1}


def test_a_line_that_is_no_row_is_named_by_its_place(node: ClusterNode) -> None:
    headers, body = {"content-type": NDJSON}, '{"id":9}\n\n[]\n'
    refused(node, 400, "row 2 must", "POST", "/tables/t/rows", content=body, headers=headers)
    assert rows(node) == [0]


@pytest.mark.parametrize(
    ("query", "status", "named"),
    [
        ("row", 400, "query.key"),
        ("row?key=", 400, "key is no JSON"),
        ("row?key=[]", 400, "key must be a JSON object"),
        ('row?key={"id":"1"}', 400, "column id"),
        ('row?key={"id":1,"s":"x"}', 400, "its key has no column s"),
        ("row?key={}", 400, "column id of the key is missing"),
        ('row?key={"id":1,"s":"%FF"}', 400, "is not UTF-8"),
        ('row?key={"id":1}&at=x', 400, "time 'x'"),
        ('row?key={"id":1}&at=' + "9" * 5000, 400, "time '9999"),
        ('row?key={"id":1}&at=99999999999999999999', 400, "is no timestamp"),
        ('row?key={"id":1}&at=2999-01-01', 400, "is in the future"),
        ('row?key={"id":1}&at=1970-01-01', 410, "the low watermark"),
        ('row?key={"id":1}&tx=nope', 404, "transaction nope"),
        ('row?key={"id":1}&tx=n1.0123', 404, "transaction n1.0123"),
        ('row?key={"id":1}&tx=elsewhere.0123', 404, "transaction elsewhere.0123"),
        ("rows?prefix=x", 400, "prefix is no JSON"),
        ('rows?prefix={"s":"x"}', 400, "first columns of its key"),
        ('rows?prefix={"id":null}', 400, "column id must not be null"),
        ("rows?index=nope", 404, "index t.nope"),
        ("rows?limit=0", 400, "query.limit"),
        ("rows?limit=1001", 400, "query.limit"),
        ("rows?limit=x", 400, "query.limit"),
        ("rows?cursor=", 400, "cursor "),
        ("rows?cursor=x", 400, "cursor x"),
    ],
)
def test_a_query_that_cannot_be_meant_is_refused(
    node: ClusterNode, query: str, status: int, named: str
) -> None:
    refused(node, status, named, "GET", f"/tables/t/{query}")


def cursor(*values: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(values).encode()).decode()


def test_a_cursor_that_was_not_answered_is_refused(node: ClusterNode) -> None:
    page = node.call("GET", "/tables/t/rows?limit=1")
    at, space = page["timestamp"], node.call("GET", "/tables/t")["id"].to_bytes(4, "big").hex()
    for values in (
        (float("inf"), 0, ""),
        (float("nan"), 0, ""),
        (at, float("inf"), ""),
        (at, 0.0, ""),
        (at, "0", ""),
        (True, 0, ""),
        (0, 0, ""),
        (-1, 0, ""),
        (2**70, 0, ""),
        (at, 0, "zz"),
        (at, 0, 1),
        (at, 0, None),
        (at, 0),
    ):
        refused(node, 400, "is none that was answered", "GET", _at(cursor(*values)))
    deep = base64.urlsafe_b64encode(b"[" * 40_000).decode()
    refused(node, 400, "is none that was answered", "GET", _at(deep))
    # A key before those of the table would show those of another one.
    for values in ((at, 99, ""), (at, -1, ""), (at, 2**70, ""), (at, 0, "00"), (at, 0, "ff")):
        refused(node, 400, "cursor of table t", "GET", _at(cursor(*values)))
    assert node.call("GET", _at(cursor(at, 1, space)))["next"] is None


def _at(place: str) -> str:
    return f"/tables/t/rows?cursor={place}"


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "named"),
    [
        ("POST", "transactions", "x", 400, "body"),
        ("POST", "transactions", '{"read_only":1}', 400, "body.read_only"),
        ("POST", "transactions", '{"at":"2020-01-01"}', 400, "only a read-only transaction"),
        ("POST", "transactions", '{"read_only":true,"at":"1999-01-01"}', 410, "low watermark"),
        ("POST", "transactions", '{"zz":5}', 400, "body.zz"),
        ("POST", "transactions/n1.00/commit", "", 404, "transaction n1.00"),
        ("POST", "transactions/elsewhere.00/rollback", "", 404, "transaction elsewhere.00"),
        ("DELETE", 't/row?key={"id":"x"}', "", 400, "column id"),
        ("DELETE", 't/row?key={"id":%FF}', "", 400, "is not UTF-8"),
        ("PUT", "t/indexes/i", '{"columns":["zz"]}', 400, "column zz"),
        ("PUT", "t/indexes/%FF", '{"columns":["id"]}', 400, "is not UTF-8"),
        ("GET", "%FF", "", 400, "is not UTF-8"),
        ("DELETE", "nope", "", 404, "table nope"),
    ],
)
def test_other_wrong_requests_are_refused_by_name(
    node: ClusterNode, method: str, path: str, body: str, status: int, named: str
) -> None:
    headers = {"content-type": "application/json"} if body else {}
    more = {"content": body, "headers": headers}
    refused(node, status, named, method, f"/tables/{path}", **more)


def begun(node: ClusterNode) -> str:
    return str(node.call("POST", "/tables/transactions", json={})["id"])


def test_open_transactions_have_a_limit(node: ClusterNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lithify.tables.open_handles.TRANSACTIONS_MAX", 3)
    opened = [begun(node) for _ in range(3)]
    path = "/tables/transactions"
    for body in ({}, {"read_only": True}):
        kind, reason = node.refused(429, "POST", path, json=body)
        assert kind == "TooManyTransactions"
        assert reason.startswith("this node has 3 open transactions, the maximum")
    for each in opened:
        node.call("POST", f"{path}/{each}/rollback")
    node.call("POST", f"{path}/{begun(node)}/commit")


def test_a_row_that_a_transaction_replaces_counts_once(node: ClusterNode) -> None:
    tx, large = begun(node), "x" * 1_000_000
    path = f"/tables/t/rows?tx={tx}"
    node.call("POST", path, json={"id": 0, "s": large})
    for _ in range(5):
        node.call("POST", path, json={"id": 0, "s": large})
    tables = node.node.cluster.tables
    assert tables is not None
    assert 1_000_000 < tables.active.kept_bytes < 1_001_000, "a row that is replaced counts once"
    node.call("POST", f"/tables/transactions/{tx}/rollback")
    assert tables.active.kept_bytes == 0


def test_all_transactions_together_have_a_limit_of_bytes(
    node: ClusterNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(active_transactions, "KEPT_BYTES_MAX", 1000)
    one, two = begun(node), begun(node)
    node.call("POST", f"/tables/t/rows?tx={one}", json={"id": 0, "s": "x" * 600})
    path = f"/tables/t/rows?tx={two}"
    kind, reason = node.refused(429, "POST", path, json={"id": 0, "s": "y" * 600})
    assert kind == "TooManyTransactions"
    assert "1000 bytes of open transactions" in reason
    node.call("POST", f"/tables/transactions/{one}/rollback")
    node.call("POST", path, json={"id": 0, "s": "y" * 600})
    node.call("POST", f"/tables/transactions/{two}/rollback")
