"""A blob store when the disk fails, the clock goes back, or runs and threads meet."""

from __future__ import annotations

import io
import random
import threading
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TYPE_CHECKING

import pytest

from lithify.blobs.errors import (
    BlobDeleted,
    BlobDeletedForever,
    BlobExists,
    BlobExpired,
    BlobNotFound,
)
from lithify.blobs.log_writer import NewRecord
from lithify.blobs.records import BlobRecordKind, encode_put, hash_id
from lithify.blobs.settings import BlobSettings
from lithify.blobs.store import BlobStore
from lithify.blobs.visibility import Include
from lithify.clock import ManualClock
from lithify.compaction.limits.one_run_per_disk import DiskGate
from lithify.errors import WriteFailed
from lithify.fs import LocalFileSystem, MemoryFileSystem
from lithify.testing.faulty_fs import Fault, FaultyFileSystem, PowerCut
from tests.unit.blobs.life import Meddling
from tests.unit.blobs.test_records import a_put
from tests.unit.blobs.test_store import SETTINGS, create, read, reads

if TYPE_CHECKING:
    from pathlib import Path


def test_a_record_is_invisible_before_it_is_durable() -> None:
    store = create()
    id_hash = hash_id("early", store.log.manifest.log_id)
    put = a_put(blob_id="early")
    body = encode_put(put, id_hash) + b"rock"
    with store.writer.lock:
        record = NewRecord(
            BlobRecordKind.PUT, id_hash, body, life_version=0, expiry_ms=put.expiry_ms, time_ms=1
        )
        pending = store.writer.append(record)
    with pytest.raises(BlobNotFound):
        store.get("early")
    assert list(store.list()) == []
    with pytest.raises(BlobExists):
        store.put(b"", blob_id="early", service="s")
    pending.result()
    assert read(store, "early") == b"rock"
    assert len(list(store.list())) == 1


def test_a_failed_fsync_leaves_nothing_and_the_next_one_works() -> None:
    fs = FaultyFileSystem(MemoryFileSystem())
    store = create(fs)
    store.put(b"old", blob_id="old", service="s")
    fs.add(Fault("fdatasync", nth=1, kind="EIO"))
    with pytest.raises(WriteFailed):
        store.put(b"lost", blob_id="lost", service="s")
    with pytest.raises(BlobNotFound):
        store.get("lost")
    store.delete("old")
    store.put(b"found", blob_id="lost", service="s")
    assert read(store, "lost") == b"found"
    with pytest.raises(BlobDeleted):
        store.get("old")


def test_an_fsync_that_fails_before_a_roll_leaves_nothing_in_the_index() -> None:
    fs = FaultyFileSystem(MemoryFileSystem())
    store = create(fs)
    store.put(b"first", blob_id="first", service="s")
    id_hash = hash_id("lost", store.log.manifest.log_id)
    body = encode_put(a_put(blob_id="lost"), id_hash) + b"rock"
    with store.writer.lock:
        pending = store.writer.append(
            NewRecord(BlobRecordKind.PUT, id_hash, body, life_version=0, expiry_ms=2**62, time_ms=1)
        )
        fs.add(Fault("fdatasync", nth=1, kind="EIO"))
        with pytest.raises(WriteFailed):
            pending.result()
        store.writer.roll()
    store.put(b"second", blob_id="second", service="s")
    with pytest.raises(BlobNotFound):
        store.get("lost", include=Include.ALL)
    store.put(b"found", blob_id="lost", service="s")
    assert [info.blob_id for info in store.list()] == ["first", "second", "lost"]


@pytest.mark.parametrize("nth", range(1, 6))
def test_a_disk_that_fills_up_in_the_middle_of_a_put_leaves_nothing_to_be_seen(nth: int) -> None:
    clock = ManualClock()
    fs = FaultyFileSystem(MemoryFileSystem())
    store = create(fs, clock, segment_bytes=4 * 2**20)
    content = random.Random(nth).randbytes(2_500_000)
    store.put(b"first", blob_id="first", service="s")
    fs.add(Fault("write*", nth=nth, kind="SHORT"))
    with pytest.raises(WriteFailed):
        store.put(io.BytesIO(content), blob_id="a", service="s")
    fs.add(Fault("fdatasync", nth=1, kind="EIO"))
    with pytest.raises(WriteFailed):
        store.put(io.BytesIO(content[:1_200_000]), blob_id="a", service="s")
    assert [info.blob_id for info in store.list()] == ["first"]
    store.put(io.BytesIO(content[:900_000]), blob_id="a", service="s")
    assert read(store, "a") == content[:900_000]
    with store.writer.lock:
        store.writer.roll()
    store.compaction.run()
    assert store.used_bytes < 1_000_000
    assert read(store, "a") == content[:900_000]
    assert read(store, "first") == b"first"


def test_an_index_that_cannot_be_written_is_kept_in_memory_and_written_later() -> None:
    fs = FaultyFileSystem(MemoryFileSystem())
    store = create(fs)
    store.put(b"x", blob_id="a", service="s")
    fs.add(Fault("writev", "*.keys*", nth=1, kind="ENOSPC"))
    with store.writer.lock:
        store.writer.roll()
    assert not [name for name in fs.list("/blobs") if ".keys" in name]
    assert read(store, "a") == b"x"
    store.compaction.run()
    assert [name for name in fs.list("/blobs") if name.endswith(".keys")]
    assert read(store, "a") == b"x"


def test_a_full_disk_has_no_room_for_a_lost_index_but_the_store_opens() -> None:
    disk = MemoryFileSystem()
    clock = ManualClock()
    store = create(disk, clock)
    for blob_id in ("a", "b"):
        store.put(b"x" * 70_000, blob_id=blob_id, service="s")
    store.delete("a")
    clock.advance(2)
    store.put(b"y" * 250_000, blob_id="c", service="s")
    store.put(b"y" * 250_000, blob_id="d", service="s")
    store.compaction.run(policy="stats")
    assert any(segment.dead for segment in store.log.manifest.segments)
    store.close()
    for name in disk.list("/blobs"):
        if name.endswith(".keys"):
            disk.remove(f"/blobs/{name}")
    fs = FaultyFileSystem(disk)
    fs.add(Fault("writev", "*.keys*", nth=1, count=None, kind="ENOSPC"))
    with BlobStore.open(fs, "/blobs", settings=SETTINGS, clock=clock) as store:
        assert read(store, "b") == b"x" * 70_000
        with pytest.raises(BlobDeleted):
            store.get("a", include=Include.ALL)
    assert not [name for name in disk.list("/blobs") if ".keys" in name]


def test_a_clock_set_back_during_a_run_revives_nothing() -> None:
    clock = ManualClock()
    store = create(clock=clock)
    store.put(b"x", blob_id="expired", service="s", expiry_ms=clock.now_ms() + 1000)
    store.put(b"x", blob_id="deleted", service="s")
    store.delete("deleted")
    with store.writer.lock:
        store.writer.roll()
    clock.advance(5)

    def turn_back() -> None:
        clock.jump(-4.5)
        with pytest.raises(BlobExpired):
            store.ttl("expired", None)
        with pytest.raises(BlobDeletedForever):
            store.undelete("deleted")

    store.compaction.run(jobs=Meddling(turn_back))
    assert reads(store, "expired") == ["BlobNotFound"] * 4
    assert reads(store, "deleted") == ["BlobDeleted"] * 4


def test_a_clock_set_back_after_a_killed_run_revives_nothing() -> None:
    clock = ManualClock()
    disk = MemoryFileSystem()
    fs = FaultyFileSystem(disk)
    store = create(fs, clock)
    store.put(b"x", blob_id="expired", service="s", expiry_ms=clock.now_ms() + 1000)
    store.put(b"x", blob_id="there", service="s")
    with store.writer.lock:
        store.writer.roll()
    clock.advance(5)
    fs.add(Fault("rename", "*MANIFEST*", nth=1, kind="CRASH"))
    with pytest.raises(PowerCut):
        store.compaction.run()
    clock.jump(-4.5)
    store = BlobStore.open(disk.kill_clone(), "/blobs", settings=SETTINGS, clock=clock)
    with pytest.raises(BlobExpired):
        store.ttl("expired", None)
    assert store.compaction.recover() is not None
    assert reads(store, "expired") == ["BlobNotFound"] * 4
    assert read(store, "there") == b"x"


# --- beside each other ---------------------------------------------------------------------------


def test_an_open_blob_is_read_to_its_end_during_compaction() -> None:
    clock = ManualClock()
    store = create(clock=clock, segment_bytes=3 * 2**20)
    content = random.Random(1).randbytes(2_200_000)
    store.put(content, blob_id="a", service="s")
    store.put(bytes(2_000_000), blob_id="b", service="s")
    with store.get("a") as blob:
        pieces = iter(blob)
        first = next(pieces)
        store.delete("a")
        clock.advance(2)
        assert store.compaction.run().retired_bytes > 2_000_000
        with pytest.raises(BlobDeleted):
            store.get("a", include=Include.ALL)
        assert first + b"".join(pieces) == content
    assert not store.log.pins()
    assert store.compaction.reclaim() > 2_000_000


def test_threads_put_get_and_delete_during_runs(tmp_path: Path) -> None:
    fs = LocalFileSystem()
    store = BlobStore.create(
        fs,
        str(tmp_path / "b"),
        capacity_bytes=2**26,
        segment_bytes=2**18,
        settings=BlobSettings(deleted_retention_ms=0),
        gate=DiskGate(fs, str(tmp_path / "gate")),
    )
    done = threading.Event()

    def work(number: int) -> None:
        rng = random.Random(number)
        mine: dict[str, bytes] = {}
        for _ in range(60):
            content = rng.randbytes(rng.choice((10, 5000, 70_000)))
            mine[store.put(content, service="s").blob_id] = content
            blob_id = rng.choice(list(mine))
            assert read(store, blob_id) == mine[blob_id]
            if rng.random() < 0.5:
                store.delete(blob_id)
                del mine[blob_id]
                with pytest.raises((BlobDeleted, BlobNotFound)):
                    store.get(blob_id)
        for blob_id, content in mine.items():
            assert read(store, blob_id) == content

    def compact() -> int:
        runs = 0
        while not done.is_set():
            runs += store.compaction.run().result == "done"
        return runs

    with ThreadPoolExecutor(5) as pool:
        runner = pool.submit(compact)
        workers = [pool.submit(work, number) for number in range(4)]
        wait(workers)
        done.set()
        for worker in workers:
            worker.result()
        assert runner.result() > 0
    assert not store.log.pins()
    store.close()
