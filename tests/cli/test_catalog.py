"""`lithify catalog`: versions by number and time, differences, changes as TOML, snapshots.

Each story is told on a data directory that no node serves, and at a node.
"""

from __future__ import annotations

import json
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from lithify.cli.main import app
from lithify.exit_codes import CONFLICT, NOT_FOUND, USAGE
from lithify.hybrid_time import milliseconds
from tests.cli.nodes import served
from tests.patience import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from typer.testing import Result

ACME = """
[tenants.acme]
[namespaces."acme/orders"]
[topics."acme/orders/incoming"]
partitions = 2
"""
TOPIC = "persistent://acme/orders/incoming"


class Catalog:
    """The catalog of a directory or of a node."""

    def __init__(self, directory: Path, where: tuple[str, str]) -> None:
        self._directory = directory
        self._where = where

    @property
    def is_directory(self) -> bool:
        return self._where[0] == "--data"

    def file(self, text: str) -> str:
        path = self._directory / "definitions.toml"
        path.write_text(text)
        return str(path)

    def invoke(self, *words: str, stdin: str = "") -> Result:
        return CliRunner().invoke(app, ["catalog", *words, *self._where], input=stdin)

    def run(self, *words: str, stdin: str = "") -> str:
        done = self.invoke(*words, stdin=stdin)
        assert done.exit_code == 0, (words, done.stderr)
        return done.stdout

    def read(self, *words: str, stdin: str = "") -> Any:
        return json.loads(self.run(*words, "--json", stdin=stdin))

    def refused(self, code: int, *words: str) -> str:
        done = self.invoke(*words)
        assert (done.exit_code, done.stdout) == (code, ""), (done.stdout, done.stderr)
        assert done.stderr.startswith("lithify: error: ")
        return done.stderr

    def names(self, *words: str) -> set[str]:
        return {row["name"] for row in self.read("show", *words)["objects"]}


@pytest.fixture(params=["data", "node"])
def catalog(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Catalog]:
    data = tmp_path / "data"
    with ExitStack() as stack:
        where = ("--data", str(data))
        if request.param == "node":
            node = stack.enter_context(
                served(data, "--node", "n1", LITHIFY_TABLE_AVAILABILITY_MS="1000")
            )
            where = ("--url", node.http)
        found = Catalog(tmp_path, where)
        found.run("apply", found.file("[tenants.first]\n"))
        yield found


def test_a_text_is_applied_once_and_a_dry_run_shows_what_differs(catalog: Catalog) -> None:
    text = catalog.file(ACME)
    before = catalog.read("show")
    lines = catalog.run("apply", text, "--dry-run").splitlines()
    assert [line.split(" (")[0] for line in lines] == [
        "+ tenant acme",
        "+ namespace acme/orders",
        f"+ topic {TOPIC}",
    ]
    planned = catalog.read("apply", text, "--dry-run")
    assert [row["change"] for row in planned["differences"]] == ["added"] * 3
    assert catalog.read("show") == before

    lines = catalog.run("apply", text).splitlines()
    assert lines[0].startswith("+ tenant acme")
    assert lines[-1].startswith(f"version {before['version'] + 1}, from 2")
    again = catalog.run("apply", text)
    assert again == f"nothing has changed: version {before['version'] + 1}\n"
    assert catalog.run("apply", text, "--dry-run") == "nothing would change\n"
    row = catalog.read("apply", text)
    assert (row["changed"], row["differences"]) == (False, [])
    more = catalog.read("apply", "-", stdin="[tenants.stdin]\n")
    assert [row["name"] for row in more["differences"]] == ["stdin"]


def test_versions_are_shown_by_number_and_by_time_and_compared(catalog: Catalog) -> None:
    first = catalog.read("show")["version"]
    changed = catalog.read("apply", catalog.file(ACME))
    second, at_ms = changed["version"], milliseconds(changed["activation"])
    assert TOPIC not in catalog.names("--version", str(first))
    assert TOPIC in catalog.names("--version", str(second))
    assert TOPIC in catalog.names("--at", str(at_ms))
    assert TOPIC not in catalog.names("--at", "2020-01-01T00:00:00Z")
    shown = catalog.run("show")
    assert f"Catalog version {second}" in shown
    assert TOPIC in shown

    rows = catalog.read("history")
    assert [row["version"] for row in rows] == list(range(second, -1, -1))
    assert rows[0]["changes"][0].startswith("+ tenant acme")
    assert len(catalog.read("history", "--limit", "1")) == 1
    lines = catalog.run("history", "--limit", "2").splitlines()
    assert "+ tenant acme" in lines[2]
    assert "(and 2 more)" in lines[2]

    found = catalog.read("diff", str(first), str(second))
    assert (found["a"], found["b"]) == (first, second)
    assert [row["change"] for row in found["differences"]] == ["added"] * 3
    back = catalog.run("diff", str(second), str(first)).splitlines()
    assert sorted(line[0] for line in back) == ["-"] * 3
    assert catalog.run("diff", str(second), str(second)) == ""


def test_a_snapshot_drops_earlier_versions_and_the_error_names_the_earliest(
    catalog: Catalog,
) -> None:
    version = str(catalog.read("apply", catalog.file(ACME))["version"])
    objects = catalog.read("show", "--version", version)
    assert "low watermark" in catalog.refused(CONFLICT, "snapshot", version, "--force")
    if catalog.is_directory:
        # The low watermark is ten minutes behind.
        return
    done: list[str] = []

    def is_made() -> bool:
        """The version was in force a second ago."""
        answer = catalog.invoke("snapshot", version)
        done.append(answer.stdout)
        return answer.exit_code == 0

    wait_until(is_made)
    assert done[-1] == f"version {version} is the earliest one left\n"
    assert catalog.read("snapshot", version) == {"version": int(version), "made": False}
    # A node drops them when it has seen the snapshot.
    wait_until(lambda: catalog.invoke("show", "--version", "1").exit_code != 0)
    for words in (("show", "--version", "1"), ("diff", "1", version)):
        assert f"the earliest version left is {version}" in catalog.refused(NOT_FOUND, *words)
    early = catalog.refused(NOT_FOUND, "show", "--at", "2020-01-01")
    assert f"the earliest version left is {version}" in early
    assert catalog.read("show", "--version", version) == objects
    [row] = catalog.read("history")
    assert (row["version"], row["changes"]) == (int(version), None)
    assert "the earliest one left" in catalog.run("history")


def test_a_run_a_dry_run_and_the_holds_name_what_keeps_the_history(catalog: Catalog) -> None:
    catalog.run("pin", "monday", "--reason", "export", "--for-s", "600", "--owner", "me")
    [pin] = catalog.read("pins")
    assert (pin["name"], pin["owner"], pin["reason"]) == ("monday", "me", "export")
    assert "monday" in catalog.run("pins")
    [plan] = catalog.read("compact", "--dry-run")
    assert "pin monday" in {hold["name"] for hold in plan["holds"]}
    text = catalog.run("compact", "--dry-run")
    assert text.startswith("catalog\nhorizon ")
    assert "becomes" in text
    [done] = catalog.read("compact")
    assert done["status"] == "SUCCESS"
    assert "low watermark" in catalog.run("holds")
    assert catalog.run("unpin", "monday") == "pin monday is released\n"
    assert catalog.read("pins") == []
    assert "no pin monday" in catalog.refused(NOT_FOUND, "unpin", "monday")
    catalog.read("compaction-history")
    catalog.read("compaction-status")


def test_a_wrong_request_is_refused_and_changes_nothing(catalog: Catalog) -> None:
    before = catalog.read("show")
    missing = catalog.refused(NOT_FOUND, "apply", "nowhere.toml")
    assert "nowhere.toml" in missing
    for text, line in (
        ('[tenants.a]\n\n[topics."a/b/c"]\npartitions = "two"\n', "line 3"),
        ("[tenants.a]\n[tenants.b\n", "line 2"),
    ):
        assert line in catalog.refused(USAGE, "apply", catalog.file(text))
        assert line in catalog.refused(USAGE, "apply", catalog.file(text), "--dry-run")
    unknown = catalog.file('[topics."none/x/y"]\n')
    assert "none" in catalog.refused(NOT_FOUND, "apply", unknown)
    for words in (
        ("show", "--version", "99"),
        ("diff", "0", "99"),
        ("snapshot", "99"),
    ):
        assert "version 99" in catalog.refused(NOT_FOUND, *words)
    assert "yesterday" in catalog.refused(USAGE, "show", "--at", "yesterday")
    assert "exclude" in catalog.refused(USAGE, "show", "--at", "1", "--version", "1")
    assert catalog.invoke("history", "--limit", "1000").exit_code == USAGE
    assert catalog.invoke("show", "--version", "one").exit_code == USAGE
    assert catalog.read("show") == before


def test_only_apply_makes_a_directory(tmp_path: Path) -> None:
    catalog = Catalog(tmp_path, ("--data", str(tmp_path / "data")))
    for words in (("show",), ("history",), ("diff", "0", "1"), ("snapshot", "1")):
        assert "is not a data directory" in catalog.refused(USAGE, *words)
    text = catalog.file(ACME)
    assert "is not a data directory" in catalog.refused(USAGE, "apply", text, "--dry-run")
    assert not (tmp_path / "data").exists()
    catalog.run("apply", text)
    assert TOPIC in catalog.names()
