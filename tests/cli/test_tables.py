"""`lithify tables`: on a data directory that no node serves, and at a node."""

from __future__ import annotations

import json
import re
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from lithify.cli.client.in_process_client import ProcessClient
from lithify.cli.main import app
from lithify.exit_codes import CONFLICT, NOT_FOUND, USAGE
from lithify.tables.index_builds import IndexBuilds
from tests.cli.nodes import served
from tests.patience import PROCESS_S_MAX, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from typer.testing import Result


class Tables:
    """The tables of a directory or of a node."""

    def __init__(self, where: tuple[str, str]) -> None:
        self.where = where

    def invoke(self, *words: str, stdin: str = "") -> Result:
        return CliRunner().invoke(app, ["tables", *words, *self.where], input=stdin)

    def run(self, *words: str, stdin: str = "") -> str:
        done = self.invoke(*words, stdin=stdin)
        assert done.exit_code == 0, (words, done.stderr)
        return done.stdout

    def read(self, *words: str, stdin: str = "") -> Any:
        return json.loads(self.run(*words, "--json", stdin=stdin))

    def refused(self, code: int, *words: str) -> str:
        done = self.invoke(*words)
        assert (done.exit_code, done.stdout) == (code, ""), (done.stdout, done.stderr)
        return done.stderr

    def lines(self, *words: str) -> list[Any]:
        text = self.run("scan", "orders", *words, "--json")
        return sorted((json.loads(line) for line in text.splitlines()), key=lambda row: row["id"])


@pytest.fixture(params=["data", "node"])
def tables(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Tables]:
    data = tmp_path / "data"
    with ExitStack() as stack:
        where = ("--data", str(data))
        if request.param == "node":
            node = stack.enter_context(served(data, "--node", "n1"))
            where = ("--url", node.http)
        found = Tables(where)
        columns = ("--column", "id:int32", "--column", "note:string?", "--key", "id")
        assert found.run("create", "orders", *columns) == "table orders created\n"
        yield found


def test_a_table_is_created_listed_altered_and_dropped(tables: Tables) -> None:
    assert [each["name"] for each in tables.read("list")] == ["orders"]
    assert "orders" in tables.run("list")
    tables.run("alter", "orders", "--add", "more:int8=3", "--drop", "note")
    tables.run("alter", "orders", "--widen", "more:int32")
    assert [each["type"] for each in tables.read("show", "orders")["columns"]] == ["int32"] * 2
    assert "partitions" in tables.run("show", "orders")
    tables.refused(CONFLICT, "create", "orders", "--column", "id:int8", "--key", "id")
    tables.run("drop", "orders", "--yes")
    tables.refused(NOT_FOUND, "show", "orders")


def test_rows_are_put_read_scanned_and_deleted(tables: Tables) -> None:
    assert tables.run("put", "orders", "id=1", "note=one") == "1 rows put\n"
    lines = "".join(json.dumps({"id": number, "note": "x"}) + "\n" for number in range(2, 9))
    assert tables.read("put", "orders", "--lines", "-", stdin=lines) == {"put": 7}
    assert tables.run("get", "orders", "id=1") == "id=1\nnote=one\n"
    assert tables.read("get", "orders", "id=1") == {"id": 1, "note": "one"}
    assert [row["id"] for row in tables.lines()] == list(range(1, 9))
    assert tables.lines("id=5") == [{"id": 5, "note": "x"}]
    assert len(tables.lines("--limit", "3")) == 3
    assert "one" in tables.run("scan", "orders")
    tables.run("delete", "orders", "id=1")
    tables.refused(NOT_FOUND, "get", "orders", "id=1")
    tables.refused(USAGE, "put", "orders", "id=text")
    tables.refused(USAGE, "put", "orders")


def test_an_index_is_built_used_and_dropped(tables: Tables) -> None:
    tables.run("put", "orders", "id=1", "note=one")
    tables.run("index", "create", "orders", "by_note", "--column", "note")

    def is_available() -> bool:
        return [each["status"] for each in tables.read("show", "orders")["indexes"]] == [
            "available"
        ]

    # With --data it is available when the command has ended.
    wait_until(is_available, seconds=0 if tables.where[0] == "--data" else PROCESS_S_MAX)
    assert tables.lines("note=one", "--index", "by_note") == [{"id": 1, "note": "one"}]
    checked = tables.read("index", "verify", "orders", "by_note")
    assert checked == {"rows": 1, "entries": 1, "missing": 0, "superfluous": 0, "examples": []}
    assert tables.run("index", "verify", "orders", "by_note").endswith("1 rows, 1 entries, equal\n")
    tables.refused(NOT_FOUND, "index", "verify", "orders", "other")
    tables.run("index", "drop", "orders", "by_note")
    tables.refused(NOT_FOUND, "scan", "orders", "note=one", "--index", "by_note")


def test_a_backup_names_rows_that_it_does_not_have_and_a_scan_saves_them(
    tables: Tables, tmp_path: Path
) -> None:
    lines = "".join(json.dumps({"id": number, "note": "x"}) + "\n" for number in range(30))
    tables.run("put", "orders", "--lines", "-", stdin=lines)
    backup = ["backup", str(tmp_path / "backup"), "--data", str(tmp_path / "data")]
    done = CliRunner().invoke(app, backup)
    assert done.exit_code == 0, done.stderr
    assert re.search(r"not saved: the rows of tables, in \d+ partitions", done.stdout)
    saved = tables.run("scan", "orders", "--json")
    other = Tables(("--data", str(tmp_path / "other")))
    other.run("create", "orders", "--column", "id:int32", "--column", "note:string?", "--key", "id")
    for _ in range(2):
        assert other.read("put", "orders", "--lines", "-", stdin=saved) == {"put": 30}
    assert other.lines() == tables.lines()


@pytest.fixture
def directory(tmp_path: Path) -> Tables:
    """A table in a directory, with rows that are equal in all but the key."""
    found = Tables(("--data", str(tmp_path / "data")))
    found.run("create", "orders", "--column", "id:int32", "--column", "note:string", "--key", "id")
    lines = "".join(json.dumps({"id": number, "note": "x"}) + "\n" for number in range(600))
    found.run("put", "orders", "--lines", "-", stdin=lines)
    return found


def test_a_command_on_a_directory_ends_when_its_index_is_built(directory: Tables) -> None:
    done = directory.run("index", "create", "orders", "by_note", "--column", "note")
    assert done == "index by_note of table orders is available\n"
    assert len(directory.lines("note=x", "--index", "by_note")) == 600


def test_an_index_that_a_killed_command_has_left_is_built_by_the_next_change(
    directory: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ProcessClient, "finish", lambda _: False)
    monkeypatch.setattr(IndexBuilds, "step", _no_step)
    directory.run("index", "create", "orders", "by_note", "--column", "note")
    assert directory.read("show", "orders")["indexes"][0]["status"] == "registered"
    monkeypatch.undo()
    directory.run("delete", "orders", "id=0")
    assert directory.read("show", "orders")["indexes"][0]["status"] == "available"
    assert len(directory.lines("note=x", "--index", "by_note")) == 599


async def _no_step(_: IndexBuilds) -> bool:
    return False


def test_a_unique_index_over_equal_rows_of_a_directory_is_refused(tmp_path: Path) -> None:
    found = Tables(("--data", str(tmp_path / "data")))
    columns = ("--column", "id:int32", "--column", "part:int32", "--partition-key", "part")
    found.run("create", "orders", *columns, "--key", "part", "--key", "id")
    for number in (1, 2):
        found.run("put", "orders", f"id={number}", "part=1")
    create = ("index", "create", "orders", "by_part", "--column", "part", "--unique")
    assert "two rows have the same values" in found.refused(CONFLICT, *create)
    assert found.read("show", "orders")["indexes"] == []


def test_a_transaction_at_a_node_ends_with_a_commit_or_without(tmp_path: Path) -> None:
    with served(tmp_path / "data", "--node", "n1") as node:
        tables = Tables(("--url", node.http))
        tables.run("create", "orders", "--column", "id:int32", "--key", "id")
        first = tables.run("tx", "begin").strip()
        tables.run("put", "orders", "id=1", "--tx", first)
        tables.refused(NOT_FOUND, "get", "orders", "id=1")
        assert tables.run("tx", "commit", first) == "committed\n"
        reading = tables.read("tx", "begin", "--read-only")["id"]
        assert tables.lines("--tx", reading) == [{"id": 1}]
        second = tables.read("tx", "begin")["id"]
        tables.run("delete", "orders", "id=1", "--tx", second)
        assert tables.run("tx", "rollback", second) == "rolled back\n"
        assert tables.read("get", "orders", "id=1") == {"id": 1}
        tables.refused(NOT_FOUND, "tx", "commit", second)
