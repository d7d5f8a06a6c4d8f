"""Operators' mistakes with a data directory: a directory removed, a lock removed, a node on it."""

from __future__ import annotations

import json
import shutil
import subprocess
from typing import TYPE_CHECKING

import pulsar
import pytest
from typer.testing import CliRunner

import lithify
from lithify.cli.main import app
from lithify.errors import LogLocked
from lithify.fs import LocalFileSystem
from lithify.raft.storage.storage import RaftStorage
from tests.cli.nodes import COMMAND, served
from tests.fault.asking import ADMIN, EARLIEST, TOPIC, ask, client_of, said
from tests.patience import PROCESS_S_MAX

if TYPE_CHECKING:
    from pathlib import Path

MIB = 2**20


def run(*words: object, code: int = 0) -> str:
    result = CliRunner().invoke(app, list(map(str, words)))
    assert result.exit_code == code, result.output
    return result.stderr if code else result.stdout


def fill(data: Path) -> None:
    with lithify.open(str(data)) as node:
        for name in ("orders", "kept"):
            node.topics.create(name).append(value=name.encode())
        node.topics.create_partitioned("parts", 2)
        for number in range(2):
            node.topics.get(f"parts-partition-{number}").append(value=b"%d" % number)
        for name in ("photos", "films"):
            made = node.blobs.create(name, capacity_bytes=4 * MIB, segment_bytes=MIB)
            made.put(b"one", service="s", blob_id="1")


# --- a directory is gone -------------------------------------------------------------------------


def test_a_node_refuses_what_is_missing_by_name_until_it_is_deleted(tmp_path: Path) -> None:
    data = tmp_path / "data"
    fill(data)
    root = data / "topics/public/default"
    for gone in (root / "orders", root / "parts-partition-1", data / "blobs/films"):
        shutil.rmtree(gone)
    with served(data) as node, client_of(node) as client:
        for name in ("orders", "parts-partition-1", "films"):
            said(node, "health", 503, f"{name}")
        with pytest.raises(pulsar.PulsarException):
            client.create_producer(TOPIC)
        status, answer = ask(node, "GET", f"{ADMIN}/orders/stats")
        assert status == 500
        assert "orders/log/MANIFEST" in str(answer)
        assert "missing, but inventory has it" in str(answer)
        assert not (root / "orders").exists()
        client.create_producer("kept").send(b"more")
        url = ("--url", node.http)
        rows = json.loads(run("topics", "list", "--missing", "--json", *url))
        local = [row["topic"].rpartition("/")[2] for row in rows]
        assert local == ["orders", "parts-partition-1"]
        assert rows[0]["directory"] == str(root / "orders")
        assert run("blobs", "list", "--missing", *url) == f"films  {data / 'blobs/films'}\n"
        for command in (("topics", "delete", "orders"), ("topics", "delete", "parts")):
            run(*command, *url)
        run("blobs", "drop", "films", *url)
        assert run("topics", "list", "--missing", *url) == ""
        said(node, "health", 200, "ok")
        client.create_producer(TOPIC).send(b"new")
        consumer = client.subscribe(TOPIC, "s", initial_position=EARLIEST)
        assert consumer.receive().data() == b"new"


def test_a_missing_log_is_restored_from_a_backup(tmp_path: Path) -> None:
    data, backup = tmp_path / "data", tmp_path / "backup"
    fill(data)
    run("backup", backup, "--data", data)
    root = data / "topics/public/default"
    for gone in (root / "orders", root / "parts-partition-1", data / "blobs/films"):
        shutil.rmtree(gone)
    text = run("backup", tmp_path / "later", "--data", data, code=1)
    assert text == ""
    saved = tmp_path / "later" / "topics/public/default"
    assert sorted(path.name for path in saved.iterdir()) == ["kept"]
    for what in (("--topic", "orders"), ("--topic", "parts"), ("--store", "films")):
        run("restore", backup, "--data", data, *what)
    with lithify.open(str(data)) as node:
        assert node.topics.missing() == ()
        assert [m.value for m in node.topics.get("orders").read()] == [b"orders"]
        for number in range(2):
            found = node.topics.get(f"parts-partition-{number}").read()
            assert [m.value for m in found] == [b"%d" % number]
        assert node.blobs.get("films").get("1").read() == b"one"


# --- the lock is gone ----------------------------------------------------------------------------


@pytest.mark.parametrize("replaced", [False, True], ids=["removed", "replaced"])
def test_without_its_file_lock_a_data_directory_is_still_locked(
    tmp_path: Path, *, replaced: bool
) -> None:
    data = tmp_path / "data"
    fill(data)
    with served(data) as node:
        (data / "LOCK").unlink()
        if replaced:
            (data / "LOCK").touch()
        pid = f"pid {node.process.pid}\n"
        backup = tmp_path / "backup"
        run("backup", backup, "--data", data)
        for words in (
            ("serve", "--data", data, "--pulsar-port", "0", "--http-port", "0"),
            ("topics", "list", "--data", data),
            ("restore", backup, "--data", data),
        ):
            done = subprocess.run(
                [COMMAND, *map(str, words)],
                capture_output=True,
                text=True,
                timeout=PROCESS_S_MAX,
                check=False,
            )
            assert done.returncode == 4, done.stderr
            assert done.stderr.endswith(f"{data} is open for writing by {pid}"), done.stderr


def test_without_its_file_lock_a_raft_directory_is_still_locked(tmp_path: Path) -> None:
    first = RaftStorage(LocalFileSystem(), str(tmp_path))
    (tmp_path / "LOCK").unlink()
    with pytest.raises(LogLocked, match="is open for writing by pid"):
        RaftStorage(LocalFileSystem(), str(tmp_path))
    first.close()
    RaftStorage(LocalFileSystem(), str(tmp_path)).close()
