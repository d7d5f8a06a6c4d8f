"""Blobs from the command line: at a node, and on a directory without a node."""

from __future__ import annotations

import json
import os
import subprocess
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

import lithify
from lithify.cli.main import app
from tests.cli.nodes import COMMAND, served_here

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def no_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LITHIFY_URL", raising=False)


def blobs(*arguments: str, stdin: bytes | None = None) -> str:
    result = CliRunner().invoke(app, ["blobs", *arguments], input=stdin)
    assert (result.exit_code, result.stderr) == (0, ""), result.output
    return result.stdout


def as_json(*arguments: str) -> Any:
    return json.loads(blobs(*arguments, "--json"))


def refused(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["blobs", *arguments])
    assert result.exit_code > 0, result.output
    return result.stderr


def create(at: tuple[str, ...], name: str = "photos") -> None:
    sizes = ("--capacity", "1MiB", "--segment", "128k")
    said = blobs("create", name, *sizes, "--set", "deleted_retention_ms=0", *at)
    assert said == f"created {name}\n"


def tell_the_story(at: tuple[str, ...], directory: Path) -> str:
    """The same at a node and on a directory; the id of the blob that is left."""
    create(at)
    assert "already exists" in refused("create", "photos", "--capacity=1M", "--segment=1M", *at)
    content = os.urandom(100_000)
    (directory / "cat.png").write_bytes(content)
    blob_id = blobs("put", "photos", str(directory / "cat.png"), "--meta", "by=ann", *at).strip()
    row = as_json("head", "photos", blob_id, *at)
    assert (row["size"], row["content_type"], row["ttl"]) == (100_000, "image/png", -1)
    assert row["metadata"] == {"by": "ann"}
    out = str(directory / "out")
    assert blobs("get", "photos", blob_id, "--out", out, *at) == f"100,000 bytes in {out}\n"
    assert (directory / "out").read_bytes() == content
    other = as_json("put", "photos", "--service=me", "--ttl=60", *at)["id"]
    [first, second] = blobs("list", "photos", *at).splitlines()
    assert (first.split()[0], second.split()[0]) == (blob_id, other)
    assert as_json("ttl", "photos", other, "-1", *at) == {"id": other, "expiry_ms": None}
    assert blobs("delete", "photos", other, *at) == f"deleted {other}\n"
    assert "is deleted" in refused("get", "photos", other, *at)
    assert "is not deleted" in refused("undelete", "photos", blob_id, *at)
    [row] = as_json("list", *at)
    assert (row["store"], row["capacity_bytes"]) == ("photos", 2**20)
    assert "of 1.0 MiB" in blobs("stats", "photos", *at)
    assert as_json("stats", "photos", "--forecast", *at)["forecast"]
    assert "reclaimable" in blobs("stats", "photos", "--forecast", *at)
    assert blobs("erase-status", "photos", *at).startswith("photos: ")
    assert "does not exist" in refused("stats", "nothing", *at)
    tell_what_is_refused(at, directory)
    return blob_id


def tell_what_is_refused(at: tuple[str, ...], directory: Path) -> None:
    """Also what a node refuses before it has heard all of a content."""
    (directory / "large").write_bytes(bytes(3 * 2**20))
    assert "larger than a segment" in refused("put", "photos", str(directory / "large"), *at)
    for ttl in ("0", "-5", "9" * 30):
        assert "ttl" in refused("put", "photos", str(directory / "large"), "--ttl", ttl, *at)
    assert str(directory) in refused("put", "photos", str(directory), *at)
    for words in (("get", "photos", "none"), ("head", "photos", "none"), ("list", "photos")):
        assert "expired" in refused(*words, "--include", "some", *at)
    before = sorted(directory.iterdir())
    assert "is not in the store" in refused(
        "get", "photos", "none", "--out", str(directory / "new"), *at
    )
    assert sorted(directory.iterdir()) == before
    assert "/dev/null" in refused("get", "photos", "none", "--out", "/dev/null", *at)


@pytest.mark.parametrize("where", ["node", "directory"])
def test_settings_are_changed_and_runs_are_listed(where: str, tmp_path: Path) -> None:
    with ExitStack() as stack:
        at = ("--data", str(tmp_path))
        if where == "node":
            at = ("--url", stack.enter_context(served_here(tmp_path)))
        create(at)
        changes = ("--set", "policy=stats", "--set", "budget.memory_bytes=33554432")
        row = as_json("update", "photos", *changes, "--unset", "deleted_retention_ms", *at)
        assert row["own"] == {"policy": "stats", "budget": {"memory_bytes": 33554432}}
        assert row["applied"]["budget.memory_bytes"] == 33554432
        lines = blobs("update", "photos", *at).splitlines()
        assert {"policy = stats", "every_ms = 604800000  (of the node)"} <= set(lines)
        assert "capacity_bytes" in refused("update", "photos", "--set", "capacity_bytes=1", *at)
        assert blobs("compaction-status", "photos", *at) == "photos: has not been compacted\n"
        result = CliRunner().invoke(app, ["blobs", "cancel-compaction", "photos", *at])
        assert result.exit_code != 0
        assert "photos" in result.stderr
        assert "no run " in result.stderr


@pytest.mark.parametrize("noun", ["topics", "blobs", "cluster", "raft"])
def test_the_verbs_of_compaction_are_the_same_under_every_noun(noun: str) -> None:
    told = CliRunner().invoke(app, [noun, "--help"]).stdout
    for verb in ("compact", "compaction-status", "compaction-history", "cancel-compaction"):
        assert f" {verb} " in told


def test_blobs_at_a_node(tmp_path: Path) -> None:
    with served_here(tmp_path / "data") as url:
        at = ("--url", url)
        blob_id = tell_the_story(at, tmp_path)
        for _ in range(3):
            (tmp_path / "more").write_bytes(bytes(100_000))
            blobs("delete", "photos", blobs("put", "photos", str(tmp_path / "more"), *at)[:-1], *at)
        create(at, "empty")
        assert "nothing sealed, there is no segment" in blobs("compact", "empty", *at)
        plan = as_json("compact", "photos", "--dry-run", "--policy", "all", *at)
        assert "policy all" in plan[0]["text"]
        lines = blobs("compact", "photos", *at).splitlines()
        assert lines[0].startswith("photos: done in "), lines
        assert "dropped, deleted" in "\n".join(lines)
        assert "admin" in blobs("compaction-history", "photos", *at)
        assert "--master" in refused("compact", "photos", "--master", "local", *at)
        assert "policy" in refused("compact", "photos", "--policy", "some", *at)
        for wrong in ("ü=1", "a=x\ny"):
            assert "no header" in refused("put", "photos", "--meta", wrong, *at)
        assert as_json("head", "photos", blob_id, *at)["id"] == blob_id


def test_blobs_of_a_directory_without_a_node(tmp_path: Path) -> None:
    at = ("--data", str(tmp_path / "data"))
    blob_id = tell_the_story(at, tmp_path)
    assert blobs("verify", "photos", *at).endswith("no damage\n")
    copied = as_json("copy", "photos", "wide", "--capacity=2M", "--segment=1M", *at)
    assert copied["blobs"] == 1
    assert as_json("head", "wide", blob_id, *at)["size"] == 100_000
    piped = subprocess.run(
        [str(COMMAND), "blobs", "get", "wide", blob_id, *at], check=True, capture_output=True
    )
    assert piped.stdout == (tmp_path / "cat.png").read_bytes()
    assert blobs("drop", "photos", *at) == "deleted photos\n"
    [row] = as_json("list", *at)
    assert row["store"] == "wide"


@pytest.mark.slow
def test_a_directory_is_compacted_by_spark(tmp_path: Path) -> None:
    at = ("--data", str(tmp_path))
    create(at)
    with lithify.open(str(tmp_path)) as node:
        store = node.blobs.get("photos")
        ids = [store.put(bytes(50_000), service="s").blob_id for _ in range(6)]
        for blob_id in ids[:3]:
            store.delete(blob_id)
    command = [str(COMMAND), "blobs", "compact", "photos", "--master", "local[1,4]", "--json", *at]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    [row] = json.loads(done.stdout)
    assert (row["report"]["trigger"], row["report"]["result"]) == ("admin", "done")
    assert row["report"]["reclaimed_bytes"] > 2 * 50_000
    listed = blobs("list", "photos", "--json", *at).splitlines()
    assert [json.loads(line)["id"] for line in listed] == ids[3:]


def test_damage_is_found_and_reported(tmp_path: Path) -> None:
    at = ("--data", str(tmp_path))
    create(at)
    (tmp_path / "file").write_bytes(bytes(50_000))
    for _ in range(4):
        blobs("put", "photos", str(tmp_path / "file"), *at)
    segment = min((tmp_path / "blobs" / "photos").glob("*.seg"))
    data = bytearray(segment.read_bytes())
    data[10_000] ^= 1
    segment.write_bytes(data)
    result = CliRunner().invoke(app, ["blobs", "verify", "photos", *at])
    assert result.exit_code == 1
    assert segment.name in result.stdout


@pytest.mark.parametrize("size", ["", "x", "-1", "1.5G", "12Q"])
def test_an_invalid_size_is_refused(tmp_path: Path, size: str) -> None:
    at = ("--data", str(tmp_path))
    assert "size" in refused("create", "x", f"--capacity={size}", "--segment=1M", *at)
