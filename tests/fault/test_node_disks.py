"""A whole node, in a process of its own, on a disk that is full, read-only or damaged."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING
from urllib.request import Request, urlopen

import pulsar
import pytest

import lithify
from lithify.clock import ManualClock
from lithify.fs import LocalFileSystem
from lithify.fs.full_disk_reserve import Reserve
from lithify.node.node import Node
from lithify.node.settings import NodeSettings
from tests.cli.nodes import COMMAND, Served, served
from tests.fault.asking import ADMIN, EARLIEST, RECEIVE_MS, TOPIC, WAIT_S, ask, client_of, said
from tests.fault.disks import fill, filled, small_disk
from tests.protocol.raw import RawClient, Type

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

DISK_BYTES = 8 * 2**20


@contextmanager
def on_small_disk(tmp_path: Path, *options: str) -> Iterator[tuple[Served, Path]]:
    with small_disk(tmp_path / "disk", DISK_BYTES) as disk:
        with served(disk / "data", *options) as node:
            yield node, disk
            logged = node.logged()
        assert "Traceback" not in logged, logged


def test_a_producer_on_a_full_disk_times_out_and_resumes(tmp_path: Path) -> None:
    with on_small_disk(tmp_path) as (node, disk), client_of(node) as client:
        producer = client.create_producer(TOPIC, send_timeout_millis=3000)
        producer.send(b"before")
        with filled(disk):
            began_s = time.monotonic()
            # What fits on a last page is taken.
            with pytest.raises(pulsar.Timeout):
                send_many(producer)
            assert time.monotonic() - began_s < 20
            with pytest.raises(pulsar.Timeout):
                producer.send(b"while it is full")
        deadline_s = time.monotonic() + WAIT_S
        while True:
            try:
                producer.send(b"after")
                break
            except pulsar.Timeout:
                assert time.monotonic() < deadline_s, node.logged()
        waits = node.logged().count("producers wait until the disk accepts writes")
        assert 1 <= waits <= 3, "the client reconnects all the time"
        reader = client.create_reader(TOPIC, pulsar.MessageId.earliest)
        found = []
        while reader.has_message_available():
            found.append(reader.read_next(RECEIVE_MS).data())
        assert found[0] == b"before"
        assert found[-1] == b"after"


def test_creating_on_a_full_disk_is_refused_with_a_reason(tmp_path: Path) -> None:
    store = {"capacity_bytes": 4 * 2**20, "segment_bytes": 2**20}
    with on_small_disk(tmp_path) as (node, disk):
        assert ask(node, "GET", "/admin/v2/brokers/health") == (200, "ok")
        assert ask(node, "PUT", f"{ADMIN}/there")[0] == 204
        with filled(disk):
            for method, path, body in (
                ("PUT", f"{ADMIN}/new", None),
                ("PUT", f"{ADMIN}/parted/partitions", 3),
                ("PUT", "/blobs/photos", store),
                ("PUT", "/admin/v2/namespaces/public/more", {}),
            ):
                status, answer = ask(node, method, path, body)
                assert (status, "No space left" in answer["reason"]) == (507, True), (path, answer)
            for path in ("health", "ready"):
                said(node, path, 503, "No space left")
        said(node, "health", 200, "ok")
        assert ask(node, "PUT", f"{ADMIN}/new")[0] == 204, "nothing of the first try was left"
        assert ask(node, "PUT", "/blobs/photos", store)[0] == 201


def send_many(producer: pulsar.Producer) -> None:
    for _ in range(100):
        producer.send(bytes(2**16))


def test_a_full_disk_is_emptied_by_runs_and_by_retention(tmp_path: Path) -> None:
    """The library, so that no Spark has to start."""
    clock = ManualClock()
    with small_disk(tmp_path / "disk", DISK_BYTES) as disk:
        data = disk / "data"
        settings = NodeSettings(str(data), retention_ms=1000)
        with Node(settings, clock=clock) as node:
            store = node.blobs.create(
                "photos",
                capacity_bytes=4 * 2**20,
                segment_bytes=2**20,
                settings={"deleted_retention_ms": 0},
            )
            blobs = [store.put(bytes(2**16), service="test") for _ in range(30)]
            for blob in blobs:
                store.delete(blob.put.blob_id)
            topic = node.topics.create(TOPIC)
            for _ in range(20):
                topic.append(value=bytes(2**16))
            topic.log.roll()
            clock.advance(10)
            with filled(disk):
                assert store.compaction.run("test").result == "done"
                # What that freed is taken again, but for the reserve, which was made first.
                fill(disk / "BALLAST")
                before = used_bytes(data / "topics")
                topic.maintain()
                topic.maintain()
                assert used_bytes(data / "topics") < before - 2**20
            assert used_bytes(data / "blobs") < 2**20
            assert (data / "RESERVE").stat().st_size == 2**20


@pytest.mark.slow
def test_a_store_of_dead_blobs_is_compacted_on_a_disk_without_a_free_byte(tmp_path: Path) -> None:
    settings = {
        "capacity_bytes": 8 * 2**20,
        "segment_bytes": 2**20,
        "settings": {"deleted_retention_ms": 0, "triggers": ["admin"]},
    }
    with on_small_disk(tmp_path) as (node, disk):
        assert ask(node, "PUT", "/blobs/photos", settings)[0] == 201
        ids = []
        for _ in range(40):
            request = Request(f"{node.http}/blobs/photos", bytes(2**16), method="POST")
            request.add_header("x-lithify-service-id", "test")
            with urlopen(request) as answer:
                ids.append(answer.headers["Location"].rpartition("/")[2])
        for blob_id in ids:
            assert ask(node, "DELETE", f"/blobs/photos/{blob_id}")[0] in (200, 202, 204)
        with filled(disk):
            before = used_bytes(disk / "data" / "blobs")
            status, answer = ask(node, "POST", "/blobs/photos/compaction")
            assert status < 300, answer
            deadline_s = time.monotonic() + WAIT_S
            while used_bytes(disk / "data" / "blobs") > before // 2:
                assert time.monotonic() < deadline_s, node.logged()
                time.sleep(0.1)
            said(node, "ready", 200, "ok")
            assert (disk / "data" / "RESERVE").stat().st_size == 2**20, "recreated"


def test_a_full_disk_lets_blobs_stores_and_topics_be_deleted_and_the_node_stop(
    tmp_path: Path,
) -> None:
    store = {"capacity_bytes": 4 * 2**20, "segment_bytes": 2**20}
    with on_small_disk(tmp_path) as (node, disk), client_of(node) as client:
        for name in ("photos", "films"):
            assert ask(node, "PUT", f"/blobs/{name}", store)[0] == 201
        ids = [post(node, "photos") for _ in range(100)]
        for name in ("orders", "kept"):
            producer = client.create_producer(f"persistent://public/default/{name}")
            producer.send(b"one")
            producer.close()
        with filled(disk):
            for blob_id in ids:
                assert ask(node, "DELETE", f"/blobs/photos/{blob_id}")[0] == 202
            assert ask(node, "DELETE", f"{ADMIN}/orders")[0] == 204
            assert ask(node, "DELETE", "/blobs/films")[0] == 204
            assert not (disk / "data/topics/public/default/orders").exists()
            assert not (disk / "data/blobs/films").exists()
            fill(disk / "BALLAST")
            code, _, logged = node.end(signal.SIGTERM)
            assert code == 0, logged
        with lithify.open(str(disk / "data")) as library:
            assert library.topics.get("kept").log.last_position >= 0
            assert not list(library.blobs.get("photos").list())


def test_ttls_undeletes_and_replicated_deletes_use_the_reserve_of_a_full_disk(
    tmp_path: Path,
) -> None:
    ids = [f"{number}" for number in range(100)]
    with (
        small_disk(tmp_path / "disk", DISK_BYTES) as disk,
        lithify.open(str(tmp_path / "there")) as there,
        lithify.open(str(disk / "data")) as here,
    ):
        for node in (there, here):
            made = node.blobs.create("photos", capacity_bytes=2**22, segment_bytes=2**20)
            for blob_id in ids:
                made.put(bytes(1000), service="test", blob_id=blob_id)
        photos = here.blobs.get("photos")
        for blob_id in ids:
            for _ in range(2):
                there.blobs.get("photos").delete(blob_id)
                there.blobs.get("photos").undelete(blob_id)
            there.blobs.get("photos").delete(blob_id)
        changes = there.blobs.get("photos").changes_since().changes
        assert all(change.deleted for change in changes)
        # Each of them takes more than what is left of the last page of a file.
        with filled(disk):
            for blob_id in ids:
                photos.delete(blob_id)
        with filled(disk):
            for blob_id in ids:
                photos.undelete(blob_id)
        with filled(disk):
            for blob_id in ids:
                photos.ttl(blob_id, here.clock.now_ms() + 10**9)
        with filled(disk):
            for blob_id in ids:
                photos.live_for(blob_id, None)
        assert len(list(photos.list())) == len(ids)
        replication = photos.replication
        with filled(disk):
            for start in range(0, len(ids), 10):
                taken = changes[start : start + 10]
                assert replication.applier.take(taken, replication.purged()) == []
                replication.applier.settle()
            replication.serve("0" * len(replication.replica), None, 1, settled=False)
        assert not list(photos.list())


def test_a_node_without_a_reserve_stops_on_a_full_disk_and_loses_nothing(tmp_path: Path) -> None:
    with on_small_disk(tmp_path) as (node, disk), client_of(node) as client:
        producer = client.create_producer(TOPIC)
        for number in range(10):
            producer.send(b"message %d" % number)
        (disk / "data" / "RESERVE").unlink()
        with filled(disk):
            code, _, logged = node.end(signal.SIGTERM)
            assert code == 0, logged
        with lithify.open(str(disk / "data")) as library:
            topic = library.topics.get(TOPIC)
            with topic.log.snapshot("test") as snapshot:
                assert len(list(snapshot.read())) == 10


def post(node: Served, store: str) -> str:
    """The id of a new blob."""
    request = Request(f"{node.http}/blobs/{store}", bytes(2**10), method="POST")
    request.add_header("x-lithify-service-id", "test")
    with urlopen(request) as answer:
        return str(answer.headers["Location"].rpartition("/")[2])


def used_bytes(directory: Path) -> int:
    return sum(file.stat().st_size for file in directory.rglob("*") if file.is_file())


def test_verify_on_a_full_disk_says_what_it_found(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", DISK_BYTES) as disk:
        data = disk / "data"
        with served(data) as node, client_of(node) as client:
            client.create_producer(TOPIC).send(b"one")
            settings = {"capacity_bytes": 4 * 2**20, "segment_bytes": 2**20}
            assert ask(node, "PUT", "/blobs/photos", settings)[0] == 201
            with filled(disk):
                topic = data / "topics/public/default/orders/log"
                for path in (topic, data / "blobs/photos"):
                    run("log", "verify", str(path))
                    run("log", "stat", str(path))
        with filled(disk):
            run("blobs", "verify", "photos", "--data", str(data))


def run(*words: str) -> None:
    done = subprocess.run([COMMAND, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, (words, done.stderr)


@pytest.mark.parametrize("kind", [pulsar.ConsumerType.Exclusive, pulsar.ConsumerType.Shared])
def test_a_consumer_of_a_damaged_segment_is_refused(
    tmp_path: Path, kind: pulsar.ConsumerType
) -> None:
    data = tmp_path / "data"
    with served(data) as node, client_of(node) as client:
        producer = client.create_producer(TOPIC)
        for number in range(10):
            producer.send(b"message %d" % number)
    with lithify.open(str(data)) as library:
        library.topics.get(TOPIC).log.roll()
    (segment,) = (data / "topics/public/default/orders/log").glob("*1.seg")
    damage(segment, segment.read_bytes().index(b"message 5"))
    with served(data) as node, client_of(node) as client:
        consumer = client.subscribe(TOPIC, "reads", kind, initial_position=EARLIEST)
        for number in range(5):
            assert consumer.receive(RECEIVE_MS).data() == b"message %d" % number
        with pytest.raises(pulsar.Timeout):
            consumer.receive(2000)
        said(node, "health", 503, segment.name)
        said(node, "ready", 200, segment.name)
        stats = ask(node, "GET", f"{ADMIN}/orders/stats")[1]["subscriptions"]["reads"]
        assert segment.name in stats["readFailure"]
        with pytest.raises(pulsar.NotAllowedError):
            client.subscribe(TOPIC, "reads", pulsar.ConsumerType.Shared)
        with RawClient(int(node.pulsar.rpartition(":")[2])) as raw:
            raw.ask_to_subscribe(TOPIC, "reads", consumer_id=9)
            assert f"{segment} at byte " in raw.expect(Type.ERROR).error.message
        other = client.subscribe(TOPIC, "others", initial_position=pulsar.InitialPosition.Latest)
        client.create_producer(TOPIC).send(b"behind it")
        assert other.receive(RECEIVE_MS).data() == b"behind it", "others continue"
        assert node.logged().count("a subscription cannot read further") == 1
        assert segment.name in node.logged()
        assert "Traceback" not in node.logged()


def damage(file: Path, at: int) -> None:
    with file.open("r+b") as opened:
        opened.seek(at)
        opened.write(b"\xff")


def test_an_unused_reserve_is_kept(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", DISK_BYTES) as disk:
        reserve = Reserve(LocalFileSystem(), str(disk))
        assert not reserve.keep()
        with filled(disk):
            for number in range(3):
                with reserve.if_full():
                    (disk / f"{number}").write_bytes(bytes(4096))
            assert (disk / "RESERVE").stat().st_size == 2**20 - 3 * 4096
            assert "is full: 0 bytes are free" in reserve.keep()
        assert not reserve.keep()
        assert (disk / "RESERVE").stat().st_size == 2**20


def test_a_log_that_cannot_be_opened_is_reported_as_damage_until_it_opens(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with lithify.open(str(data)) as library:
        library.blobs.create("films", capacity_bytes=4 * 2**20, segment_bytes=2**20)
        library.blobs.create("photos", capacity_bytes=4 * 2**20, segment_bytes=2**20)
        library.topics.create_partitioned("parted", 2)
        for name in ("cut", "fine", "headless", "parted-partition-1"):
            topic = library.topics.get(name, create=True)
            topic.append(value=b"one")
            topic.log.roll()
            topic.append(value=b"two")
    topics = data / "topics/public/default"
    whole = (topics / "cut/log/000000000002.seg").read_bytes()
    (topics / "cut/log/000000000002.seg").write_bytes(whole[:20])
    (topics / "headless/log/MANIFEST").unlink()
    (topics / "parted-partition-1/log/000000000001.seg").unlink()
    (data / "blobs/photos/MANIFEST").unlink()
    with served(data) as node:
        for name in ("topic persistent://public/default/cut", "headless", "parted-partition-1"):
            said(node, "health", 503, name)
        said(node, "health", 503, "blob store photos cannot be opened")
        said(node, "ready", 200, "photos/MANIFEST")
        rows = {row["store"]: row for row in ask(node, "GET", "/blobs")[1]}
        assert "photos/MANIFEST" in rows["photos"]["error"]
        assert "error" not in rows["films"]
        listed = command("blobs", "list", "--url", node.http)
        assert listed.returncode == 1
        assert "films" in listed.stdout
        assert "photos/MANIFEST" in listed.stdout + listed.stderr
        for words in (("stats", "photos"), ("get", "photos", "1")):
            assert command("blobs", *words, "--url", node.http).returncode == 1
        (topics / "cut/log/000000000002.seg").write_bytes(whole)
        assert ask(node, "GET", f"{ADMIN}/cut/stats")[0] == 200
        for path in (f"{ADMIN}/headless", f"{ADMIN}/parted/partitions", "/blobs/photos"):
            assert ask(node, "DELETE", path)[0] == 204
        said(node, "health", 200, "ok")


def test_a_broken_store_does_not_hide_the_others(tmp_path: Path) -> None:
    data = str(tmp_path / "data")
    with lithify.open(data) as library:
        for name in ("films", "photos", "plans"):
            library.blobs.create(name, capacity_bytes=4 * 2**20, segment_bytes=2**20)
    (tmp_path / "data/blobs/photos/MANIFEST").unlink()
    done = command("blobs", "list", "--data", data)
    assert done.returncode == 1, done
    assert "films" in done.stdout
    assert "plans" in done.stdout
    assert "photos/MANIFEST" in done.stdout + done.stderr
    done = command("blobs", "list", "--data", data, "--json")
    assert done.returncode == 1
    assert ["error" in row for row in json.loads(done.stdout)] == [False, True, False]
    for words in (("stats", "photos"), ("get", "photos", "1")):
        done = command("blobs", *words, "--data", data)
        assert done.returncode == 1
        assert "photos/MANIFEST" in done.stderr


def command(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([COMMAND, *words], capture_output=True, text=True, check=False)
