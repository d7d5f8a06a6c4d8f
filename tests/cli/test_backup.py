"""Backup and restore by the commands: of a node under load, a killed node, and without a node."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import threading
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import httpx
import pulsar
import pytest
from typer.testing import CliRunner

import lithify
from lithify.blobs.errors import BlobError
from lithify.blobs.offline.verify import verify_store
from lithify.cli.main import app
from lithify.clock import SystemClock
from lithify.errors import IsABackup
from lithify.fs import LocalFileSystem
from lithify.log.verify import verify_log
from tests.cli.nodes import COMMAND, Served, served
from tests.patience import PROCESS_S_MAX, wait_until

if TYPE_CHECKING:
    from pathlib import Path

FS = LocalFileSystem()
MIB = 2**20


def run(*words: object, code: int = 0) -> str:
    result = CliRunner().invoke(app, list(map(str, words)))
    assert result.exit_code == code, result.output
    return result.stderr if code else result.stdout


@dataclass
class Load:
    """Clients of a node that write all the time, and what they were told."""

    node: Served
    stop: threading.Event = field(default_factory=threading.Event)
    sent: list[bytes] = field(default_factory=list)
    """Acknowledged, in their order."""
    blobs: dict[str, bytes] = field(default_factory=dict)
    """Acknowledged."""
    deleted: set[str] = field(default_factory=set)
    errors: list[BaseException] = field(default_factory=list)

    def start(self) -> None:
        self.threads = [
            threading.Thread(target=self._until_stopped, args=[work])
            for work in (self._produce, self._put, self._compact)
        ]
        for thread in self.threads:
            thread.start()

    def has(self, *, sent: int, blobs: int) -> bool:
        """Was so much acknowledged?"""
        return len(self.sent) >= sent and len(self.blobs) >= blobs

    def end(self) -> None:
        self.stop.set()
        for thread in self.threads:
            thread.join(PROCESS_S_MAX)

    def _until_stopped(self, work: Any) -> None:
        try:
            work()
        except (pulsar.PulsarException, httpx.HTTPError) as error:
            # A node that was killed answers no request.
            self.errors.append(error)

    def _produce(self) -> None:
        client = pulsar.Client(
            self.node.pulsar, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
        )
        producer = client.create_producer("orders", send_timeout_millis=5000)
        try:
            while not self.stop.is_set():
                value = b"%d" % len(self.sent)
                producer.send(value, partition_key=f"{len(self.sent) % 7}")
                self.sent.append(value)
        finally:
            client.close()

    def _put(self) -> None:
        with httpx.Client(base_url=self.node.http, timeout=PROCESS_S_MAX) as client:
            while not self.stop.is_set():
                number = len(self.blobs)
                content = b"%d" % number * 3000
                answer = client.post("/blobs/photos", content=content)
                if answer.status_code == 507:
                    return
                self.blobs[answer.raise_for_status().json()["id"]] = content
                if number % 3 == 2:
                    blob_id = list(self.blobs)[number - 1]
                    client.delete(f"/blobs/photos/{blob_id}").raise_for_status()
                    self.deleted.add(blob_id)

    def _compact(self) -> None:
        with httpx.Client(base_url=self.node.http, timeout=PROCESS_S_MAX) as client:
            while not self.stop.wait(0.2):
                client.post("/blobs/photos/compaction")
                client.put("/admin/v2/persistent/public/default/orders/compaction")


def made(node: Served) -> Load:
    shape = {
        "capacity_bytes": 64 * MIB,
        "segment_bytes": MIB,
        "settings": {"deleted_retention_ms": 0},
    }
    httpx.put(f"{node.http}/blobs/photos", json=shape).raise_for_status()
    return Load(node)


def check_restored(
    data: Path, before: Load, sent: int, blobs: dict[str, bytes], deleted: set[str]
) -> None:
    """Everything acknowledged before the backup began is there, nothing deleted before it is."""
    with lithify.open(str(data)) as node:
        found = [message.value for message in node.topics.get("orders").read()]
        assert found == [b"%d" % number for number in range(len(found))]
        assert sent <= len(found)
        store = node.blobs.get("photos")
        for blob_id, content in blobs.items():
            if blob_id in deleted:
                with pytest.raises(BlobError):
                    store.get(blob_id)
            elif blob_id not in before.deleted:
                assert store.get(blob_id).read() == content
        node.topics.get("orders").append(value=b"continues")
        store.put(b"continues", service="s")
    assert verify_store(FS, str(data / "blobs" / "photos"), SystemClock()).ok
    assert verify_log(FS, str(data / "topics/public/default/orders/log")).damage is None


@pytest.mark.parametrize("rounds", [2, pytest.param(20, marks=pytest.mark.slow)])
def test_a_backup_under_load_has_everything_acknowledged(tmp_path: Path, rounds: int) -> None:
    with served(tmp_path / "data", LITHIFY_SEGMENT_BYTES_MAX="65536") as node:
        load = made(node)
        load.start()
        try:
            previous: list[object] = []
            for number in range(rounds):
                wanted = len(load.sent) + 100
                wait_until(partial(load.has, sent=wanted, blobs=40))
                sent, deleted = len(load.sent), set(load.deleted)
                blobs = dict(load.blobs)
                backup = tmp_path / f"backup-{number}"
                said = json.loads(run("backup", backup, "--url", node.http, "--json", *previous))
                assert (said["topics"], said["stores"]) == (1, 1)
                previous = ["--previous", backup]
                run("restore", backup, "--data", tmp_path / f"again-{number}")
                check_restored(tmp_path / f"again-{number}", load, sent, blobs, deleted)
        finally:
            load.end()
    assert not load.errors
    # The first backup is what it was, whatever was compacted and erased since.
    for number in range(rounds):
        assert "no damage" in run("restore", tmp_path / f"backup-{number}", "--check")


def test_the_node_and_the_backup_are_killed_and_both_resume(tmp_path: Path) -> None:
    with served(tmp_path / "data", LITHIFY_SEGMENT_BYTES_MAX="65536") as node:
        load = made(node)
        load.start()
        wait_until(partial(load.has, sent=200, blobs=60))
        target = tmp_path / "backup"
        killed = subprocess.Popen([COMMAND, "backup", target, "--url", node.http])
        wait_until(lambda: (target / "topics").exists() or killed.poll() is not None)
        killed.kill()
        killed.wait()
        if killed.returncode:
            assert "not finished" in run("restore", target, "--check", code=3)
        else:
            target = tmp_path / "other"
        sent, blobs, deleted = len(load.sent), dict(load.blobs), set(load.deleted)
        second = subprocess.Popen([COMMAND, "backup", target, "--data", tmp_path / "data"])
        wait_until(lambda: (target / "UNFINISHED").exists() or second.poll() is not None)
        node.end(signal.SIGKILL)
        load.end()
        assert second.wait(PROCESS_S_MAX) == 0
    run("restore", target, "--data", tmp_path / "again")
    check_restored(tmp_path / "again", load, sent, blobs, deleted)


def test_definitions_that_are_lost_are_reported_and_the_data_adopted(tmp_path: Path) -> None:
    data = tmp_path / "data"
    run("topics", "produce", "orders", "paid", "--data", data)
    run("blobs", "create", "photos", "--capacity", "4MiB", "--segment", "1MiB", "--data", data)
    shutil.rmtree(data / "raft")
    with served(data) as node:
        at = ["--url", node.http]
        assert "MISSING" in node.logged()
        assert "orders" in node.logged()
        assert run("topics", "list", *at) == ""
        assert 'lithify_unclaimed{kind="topic"} 1.0' in httpx.get(f"{node.http}/metrics").text
        assert "orders" in run("topics", "list", "--unclaimed", *at)
        assert "photos" in run("blobs", "list", "--unclaimed", *at)
        assert "topics adopt" in run("topics", "produce", "orders", "x", *at, code=4)
        shape = ["--capacity", "4MiB", "--segment", "1MiB"]
        assert "blobs adopt" in run("blobs", "create", "photos", *shape, *at, code=4)
        client = pulsar.Client(node.pulsar, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
        with pytest.raises(pulsar.NotAllowedError):
            client.create_producer("orders")
        client.close()
        run("topics", "adopt", "--all", *at)
        run("blobs", "adopt", "photos", "--set", "deleted_retention_ms=5", *at)
        assert "paid" in run("topics", "tail", "orders", *at)
        assert run("topics", "list", "--unclaimed", *at) == ""
        assert json.loads(run("blobs", "list", "--unclaimed", "--json", *at)) == []
        assert "photos" in run("blobs", "list", *at)
    assert "paid" in run("topics", "tail", "orders", "--data", data)


def saved(tmp_path: Path) -> tuple[Path, Path]:
    """A data directory without a node, and a backup of it."""
    data, backup = tmp_path / "data", tmp_path / "backup"
    with lithify.open(str(data)) as node:
        node.topics.create("orders").append(value=b"paid")
        node.blobs.create("photos", capacity_bytes=2 * MIB, segment_bytes=MIB)
    run("backup", backup, "--data", data)
    return data, backup


def test_a_backup_is_not_used_as_a_data_directory(tmp_path: Path) -> None:
    _, backup = saved(tmp_path)
    before = {path: path.stat().st_mtime_ns for path in backup.rglob("*")}
    for words in (
        ("topics", "produce", "orders", "x", "--data", backup),
        ("topics", "list", "--data", backup),
        ("blobs", "list", "--data", backup),
        ("restore", backup, "--data", backup),
        ("backup", tmp_path / "other", "--data", backup),
        ("serve", "--data", backup, "--pulsar-port", 0, "--http-port", 0),
    ):
        assert "is a backup" in run(*words, code=4), words
    with pytest.raises(IsABackup):
        lithify.open(str(backup))
    assert {path: path.stat().st_mtime_ns for path in backup.rglob("*")} == before
    assert not (tmp_path / "other").exists()
    run("restore", backup, "--check")


def test_a_data_directory_without_its_lock_file_is_one(tmp_path: Path) -> None:
    data, _ = saved(tmp_path)
    (data / "LOCK").unlink()
    run("backup", tmp_path / "again", "--data", data)
    assert "orders" in run("topics", "list", "--data", data)
    assert "is not a data directory" in run("topics", "list", "--data", tmp_path, code=2)
