"""Every verb gives the same at a node and on a directory: output, error, exit code."""

from __future__ import annotations

import inspect
import re
import shutil
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

import lithify
from lithify.cli import blobs, topics
from lithify.cli.main import app
from tests.cli.nodes import served_here

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import typer

SHAPE = ("--capacity", "2MiB", "--segment", "256KiB")
BLOB = "{blob}"
"""Stands for the id of the last blob that was put."""

STORY: tuple[tuple[str, ...], ...] = (
    ("topics", "create", "orders"),
    ("topics", "create", "orders"),
    ("topics", "create", "parts", "--partitions", "2"),
    ("topics", "create", "many", "--partitions", "99999999"),
    ("topics", "create", "persistent://no/where/orders"),
    ("topics", "create", "not//a/name"),
    ("topics", "list"),
    ("topics", "list", "--namespace", "no/where"),
    ("topics", "list", "--unclaimed"),
    ("topics", "list", "--missing"),
    ("topics", "produce", "orders", "a", "b", "--key", "k", "--property", "by=card"),
    ("topics", "produce", "orders", "\N{SNOWMAN}"),
    ("topics", "produce", "orders", "x", "--property", "y"),
    ("topics", "produce", "persistent://no/where/orders", "x"),
    ("topics", "produce", "new", "x"),
    ("topics", "produce", "parts", "a", "b", "--key", "k"),
    ("topics", "tail", "orders"),
    ("topics", "tail", "orders", "--limit", "1"),
    ("topics", "tail", "orders", "--from", "1:1"),
    ("topics", "tail", "orders", "--from", "5"),
    ("topics", "tail", "parts"),
    ("topics", "tail", "nothing"),
    ("topics", "get", "orders", "k"),
    ("topics", "get", "orders", "a/b?c"),
    ("topics", "get", "nothing", "k"),
    ("topics", "stats", "orders"),
    ("topics", "stats", "parts"),
    ("topics", "stats", "nothing"),
    ("topics", "compaction-status", "orders"),
    ("topics", "compaction-status", "parts", "--watch"),
    ("topics", "compaction-status", "nothing"),
    ("topics", "compaction-history", "orders"),
    ("topics", "compaction-history", "nothing"),
    ("topics", "cancel-compaction", "orders"),
    ("topics", "cancel-compaction", "nothing"),
    ("topics", "compact", "nothing"),
    ("topics", "delete", "parts-partition-0"),
    ("topics", "delete", "parts"),
    ("topics", "delete", "nothing"),
    ("topics", "adopt"),
    ("topics", "adopt", "--all"),
    ("topics", "adopt", "nothing"),
    ("blobs", "create", "photos", *SHAPE, "--set", "deleted_retention_ms=0"),
    ("blobs", "create", "photos", *SHAPE),
    ("blobs", "create", "odd", "--capacity", "10", "--segment", "3"),
    ("blobs", "create", "bad", *SHAPE, "--set", "nonsense=1"),
    ("blobs", "create", "a/b", *SHAPE),
    ("blobs", "create", "away", *SHAPE, "--namespace", "no/where"),
    ("blobs", "put", "photos", "{dir}/small", "--meta", "by=ann", "--owner", "\xe4nn"),
    ("blobs", "put", "photos", "{dir}/large"),
    ("blobs", "put", "photos", "{dir}/whole"),
    ("blobs", "put", "photos", "{dir}"),
    ("blobs", "put", "photos", "{dir}/nothing"),
    ("blobs", "put", "photos", "{dir}/small", "--ttl", "0"),
    ("blobs", "put", "photos", "{dir}/small", "--meta", "\xfc=1"),
    ("blobs", "put", "nothing", "{dir}/small"),
    ("blobs", "head", "photos", BLOB),
    ("blobs", "head", "photos", "nothing"),
    ("blobs", "head", "photos", BLOB, "--include", "some"),
    ("blobs", "get", "photos", BLOB, "--out", "{dir}/out"),
    ("blobs", "get", "photos", "nothing"),
    ("blobs", "ttl", "photos", BLOB, "-1"),
    ("blobs", "ttl", "photos", BLOB, "0"),
    ("blobs", "undelete", "photos", BLOB),
    ("blobs", "delete", "photos", BLOB),
    ("blobs", "get", "photos", BLOB),
    ("blobs", "undelete", "photos", "nothing"),
    ("blobs", "list", "photos"),
    ("blobs", "list", "photos", "--include", "all"),
    ("blobs", "list", "nothing"),
    ("blobs", "list"),
    ("blobs", "list", "--namespace", "no/where"),
    ("blobs", "list", "--unclaimed"),
    ("blobs", "list", "--missing"),
    ("blobs", "stats", "photos"),
    ("blobs", "stats", "photos", "--forecast"),
    ("blobs", "stats", "nothing"),
    ("blobs", "update", "photos", "--set", "policy=stats"),
    ("blobs", "update", "photos", "--unset", "policy"),
    ("blobs", "update", "photos", "--set", "capacity_bytes=1"),
    ("blobs", "erase-status", "photos"),
    ("blobs", "erase-status", "nothing"),
    ("blobs", "replicas", "photos"),
    ("blobs", "replicas", "nothing"),
    ("blobs", "compaction-status", "photos"),
    ("blobs", "compaction-status", "photos", "--watch"),
    ("blobs", "compaction-history", "photos", "--limit", "1"),
    ("blobs", "cancel-compaction", "photos"),
    ("blobs", "cancel-compaction", "nothing"),
    ("blobs", "compact", "nothing"),
    ("blobs", "drop", "photos"),
    ("blobs", "drop", "photos"),
    ("blobs", "adopt", "nothing"),
    ("topics", "delete", "orders"),
)

VARYING = (
    (r"\d{4}-\d\d-\d\dT[\d:.]+Z", "TIME"),
    (r"\b1[789]\d{11}\b", "MS"),
    (r'"etag": "\\"[^"]*"', "ETAG"),
    (r"(etag +)\S+", "ETAG"),
    (r"\b\d+\.\d+ s\b", "SECONDS"),
    (r'"(producer|sequence_id|request)": [^\n,]*', r"\1"),
)


class Way:
    """One of the two ways, with a directory of its own."""

    def __init__(self, directory: Path, at: tuple[str, ...]) -> None:
        self._directory = str(directory)
        self._at = at
        self._blob = "none"

    def run(self, words: tuple[str, ...]) -> tuple[int, str, str]:
        """Exit code, stdout and stderr, without what differs from run to run."""
        given = [word.format(blob=self._blob, dir=self._directory) for word in words]
        done = CliRunner().invoke(app, [*given, *self._at])
        assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
        if words[1] == "put" and not done.exit_code:
            found = re.search(r"\b[0-9a-f]{32}\b", done.stdout)
            assert found is not None
            self._blob = found[0]
        out = done.stdout
        if words[:2] == ("topics", "stats"):
            # Counters start when the topic is opened, here by each command.
            out = re.sub(r"\d+(\.\d+)?(e-?\d+)?", "N", out)
        return done.exit_code, self._same(out), self._same(done.stderr)

    def _same(self, text: str) -> str:
        shown = text.replace(self._directory, "DIR").replace(self._blob, "BLOB")
        shown = re.sub(r"\b[0-9a-f]{32}\b", "BLOB", shown)
        for pattern, word in VARYING:
            shown = re.sub(pattern, word, shown)
        return shown


@pytest.fixture
def ways(tmp_path: Path) -> Iterator[tuple[Way, Way]]:
    for name in ("node", "directory"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "small").write_bytes(b"small")
        (tmp_path / name / "large").write_bytes(bytes(3 * 2**20))
        (tmp_path / name / "whole").write_bytes(bytes(200_000))
        with lithify.open(str(tmp_path / name / "data")):
            pass
    node, directory = tmp_path / "node", tmp_path / "directory"
    with served_here(node / "data") as url:
        yield Way(node, ("--url", url)), Way(directory, ("--data", str(directory / "data")))


@pytest.mark.parametrize("options", [(), ("--json",)], ids=["text", "json"])
def test_every_verb_gives_the_same_at_a_node_and_on_a_directory(
    ways: tuple[Way, Way], options: tuple[str, ...]
) -> None:
    for words in STORY:
        there, here = (way.run((*words, *options)) for way in ways)
        assert here == there, words


def test_unclaimed_directories_are_listed_and_adopted_the_same(tmp_path: Path) -> None:
    with lithify.open(str(tmp_path / "data")) as node:
        node.topics.create("orders").append(value=b"x")
        node.blobs.create("photos", capacity_bytes=2**21, segment_bytes=2**20)
        node.topics.create("gone").append(value=b"x")
    shutil.rmtree(tmp_path / "data/raft")
    shutil.rmtree(tmp_path / "data/topics/public/default/gone")
    for name in ("node", "directory"):
        shutil.copytree(tmp_path / "data", tmp_path / name / "data")
    node_at, directory_at = tmp_path / "node", tmp_path / "directory"
    with served_here(node_at / "data") as url:
        ways = Way(node_at, ("--url", url)), Way(directory_at, ("--data", f"{directory_at}/data"))
        for noun in ("topics", "blobs"):
            for verb in ("list --unclaimed", "list --missing", "adopt --all", "list"):
                words = (noun, *verb.split())
                there, here = (way.run(words) for way in ways)
                assert here == there, words
                assert verb == "list --missing" or here[1], words


def verbs_of(noun: typer.Typer) -> set[str]:
    """Those that take both --data and --url."""
    found: set[str] = set()
    for command in noun.registered_commands:
        callback: Any = command.callback
        if {"data", "url"} <= set(inspect.signature(callback).parameters):
            found.add(command.name or callback.__name__.replace("_", "-"))
    return found


@pytest.mark.parametrize(("name", "noun"), [("topics", topics.app), ("blobs", blobs.app)])
def test_the_story_has_every_verb(name: str, noun: typer.Typer) -> None:
    assert verbs_of(noun) == {words[1] for words in STORY if words[0] == name}
