"""Starts of a node on a disk that is full, and in the middle of deletions."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest

import lithify
from lithify.errors import WriteFailed
from lithify.log.file_names import DELETED
from lithify.node.node import Node
from lithify.node.settings import NodeSettings
from lithify.topics.topics import TopicNotFound
from tests.cli.nodes import served
from tests.fault.asking import ADMIN, EARLIEST, RECEIVE_MS, TOPIC, ask, client_of, said
from tests.fault.disks import filled, small_disk
from tests.fault.test_node_disks import DISK_BYTES, used_bytes
from tests.old_directory import messages_of

if TYPE_CHECKING:
    from pathlib import Path

DELETED_TOPIC = "persistent://public/default/deleted"


def begin(data: Path, *, stops: pytest.MonkeyPatch | None = None) -> None:
    """Two topics; if the process `stops` while it deletes one, that has only its mark."""
    with lithify.open(str(data)) as node:
        for name in (TOPIC, DELETED_TOPIC):
            node.topics.create(name).append(value=bytes(2**16))
        if stops is None:
            return
        with stops.context() as patched:

            def stop(*_: object) -> None:
                raise KeyboardInterrupt

            patched.setattr(type(node.topics.definitions), "change", stop)
            with pytest.raises(KeyboardInterrupt):
                node.topics.delete(DELETED_TOPIC)
    assert (data / "topics/public/default/deleted" / DELETED).exists()


def test_a_node_with_a_cluster_port_starts_on_a_full_disk_only_with_the_reserve(
    tmp_path: Path,
) -> None:
    with small_disk(tmp_path / "disk", DISK_BYTES) as disk:
        settings = NodeSettings(str(disk / "data"), node="n1", cluster_port=0)
        with Node(settings) as node:
            node.topics.create(TOPIC).append(value=b"one")
        with filled(disk), Node(settings) as node:
            assert messages_of(node, TOPIC) == [b"one"]
        (disk / "data/RESERVE").unlink()
        # Other nodes would see a start that it has not recorded.
        with filled(disk), pytest.raises(WriteFailed, match=r"data/raft: No space left"):
            Node(settings)
        with Node(settings) as node:
            assert messages_of(node, TOPIC) == [b"one"]


def test_a_new_node_on_a_full_disk_names_the_file_that_it_cannot_write(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", DISK_BYTES) as disk:
        (disk / "data").mkdir()
        (disk / "data/LOCK").touch()
        with filled(disk), pytest.raises(WriteFailed, match=r"data/LOCK: No space left"):
            lithify.open(str(disk / "data"))


@pytest.mark.parametrize("reserve", ["a reserve", "no reserve"])
def test_a_node_starts_on_a_full_disk_and_serves_what_it_has(tmp_path: Path, reserve: str) -> None:
    with small_disk(tmp_path / "disk", DISK_BYTES) as disk:
        data = disk / "data"
        with served(data) as node, client_of(node) as client:
            client.create_producer(TOPIC).send(b"one")
            assert node.end(signal.SIGTERM)[0] == 0
        if reserve == "no reserve":
            (data / "RESERVE").unlink()
        with filled(disk), served(data) as node, client_of(node) as client:
            reader = client.subscribe(TOPIC, "reads", initial_position=EARLIEST)
            assert reader.receive(RECEIVE_MS).data() == b"one"
            status, answer = ask(node, "PUT", f"{ADMIN}/new")
            assert (status, "No space left" in answer["reason"]) == (507, True)
            said(node, "health", 503, "No space left" if reserve == "no reserve" else "is full")
            (disk / "BALLAST").unlink()
            said(node, "health", 200, "ok")
            assert ask(node, "PUT", f"{ADMIN}/new")[0] == 204
            (disk / "BALLAST").touch()
            code, _, logged = node.end(signal.SIGTERM)
            assert (code, "Traceback" in logged) == (0, False), logged


def test_a_start_on_a_full_disk_finishes_deletions_with_the_reserve(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with small_disk(tmp_path / "disk", DISK_BYTES) as disk:
        data = disk / "data"
        begin(data, stops=monkeypatch)
        with filled(disk):
            before = used_bytes(data / "topics")
            with lithify.open(str(data)) as node:
                assert not node.topics.exists(DELETED_TOPIC)
                assert node.topics.definitions.removals() == []
                assert used_bytes(data / "topics") < before - 2**15
                node.topics.delete(TOPIC)
            assert used_bytes(data / "topics") < 2**15


def test_a_deletion_that_cannot_be_finished_keeps_nothing_else_from_being_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with small_disk(tmp_path / "disk", DISK_BYTES) as disk:
        data = disk / "data"
        begin(data, stops=monkeypatch)
        (data / "RESERVE").unlink()
        with filled(disk), lithify.open(str(data)) as node:
            assert node.topics.get(TOPIC).log.last_position >= 0
            with pytest.raises(TopicNotFound, match="marked as deleted"):
                node.topics.get(DELETED_TOPIC)
            with pytest.raises(WriteFailed, match="No space left"):
                node.topics.create("persistent://public/default/new")
        with lithify.open(str(data)) as node:
            assert not node.topics.exists(DELETED_TOPIC)
            assert node.topics.get(TOPIC).log.last_position >= 0
