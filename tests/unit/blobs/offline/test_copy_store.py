"""A store is rebuilt with another shape, by copying what is valid."""

from __future__ import annotations

import random
from contextlib import suppress

import pytest

from lithify.blobs.errors import (
    BlobError,
    BlobNotFound,
    BlobStoreExists,
    BlobTooLarge,
    NotABlobStore,
    TargetTooSmall,
)
from lithify.blobs.offline.copy_store import copy_store
from lithify.blobs.offline.verify import verify_store
from lithify.blobs.store import BlobStore
from lithify.blobs.visibility import Include
from lithify.clock import ManualClock
from lithify.errors import InvalidInput, InvalidSetting, WriteFailed
from lithify.fs import MemoryFileSystem
from lithify.testing.faulty_fs import MUTATING, Fault, FaultyFileSystem, PowerCut
from tests.unit.blobs.life import CAPACITY_BYTES, DIRECTORY, RETENTION_MS, Life

TARGET = "/data/copy"


@pytest.fixture
def life() -> Life:
    life = Life(MemoryFileSystem(), ManualClock())
    life.put("gone", 500)
    life.delete("gone")
    life.put("expired", 500, 10)
    life.put("without put", 500)
    life.roll()
    life.clock.advance(RETENTION_MS / 1000 + 1)
    life.put("small", 500)
    life.put("large", 150_000, 10**6)
    life.put("deleted", 70_000)
    life.delete("deleted")
    life.roll()
    life.put("back", 20)
    life.delete("back")
    life.undelete("back")
    life.ttl("small", 10**7)
    life.put("empty", 0)
    life.put("last", 150_000)
    return life


def copied(
    life: Life, capacity_bytes: int = CAPACITY_BYTES, segment_bytes: int = CAPACITY_BYTES // 10
) -> BlobStore:
    copy_store(
        life.fs,
        DIRECTORY,
        TARGET,
        capacity_bytes=capacity_bytes,
        segment_bytes=segment_bytes,
        settings=life.settings,
        clock=life.clock,
    )
    return BlobStore.open(life.fs, TARGET, settings=life.settings, clock=life.clock)


def answers(store: BlobStore, life: Life) -> dict[tuple[str, Include], object]:
    """Everything that can be asked, of all blobs that are or were there."""
    found: dict[tuple[str, Include], object] = {}
    for blob_id in life.used:
        for include in Include:
            try:
                with store.get(blob_id, include=include) as blob:
                    info, content = blob.info, blob.read()
                    found[blob_id, include] = (
                        content,
                        info.put,
                        info.expiry_ms,
                        info.life_version,
                        info.deleted,
                        info.changed_ms,
                    )
            except BlobError as error:
                found[blob_id, include] = type(error)
    return found


def test_a_copy_answers_as_its_source_after_a_compaction(life: Life) -> None:
    with copied(life) as store:
        for _ in range(3):
            life.compact("all")
        assert answers(store, life) == answers(life.store, life)
        assert [info.blob_id for info in store.list()] == [
            info.blob_id for info in life.store.list()
        ]
        store.undelete("deleted")
        assert store.get("deleted").read() == life.alive("deleted")[0].content
    assert verify_store(life.fs, TARGET, life.clock).ok


@pytest.mark.parametrize("segment_bytes", [160_000, 400_000, CAPACITY_BYTES])
def test_the_shape_may_be_any_that_everything_fits_into(life: Life, segment_bytes: int) -> None:
    capacity = CAPACITY_BYTES // segment_bytes * segment_bytes
    with copied(life, capacity_bytes=capacity, segment_bytes=segment_bytes) as store:
        assert store.shape.segment_bytes == segment_bytes
        assert store.get("large").read() == life.alive("large")[0].content
    assert verify_store(life.fs, TARGET, life.clock).ok


def test_the_report_says_what_was_copied(life: Life) -> None:
    seen: list[int] = []
    report = copy_store(
        life.fs,
        DIRECTORY,
        TARGET,
        capacity_bytes=CAPACITY_BYTES,
        segment_bytes=CAPACITY_BYTES // 4,
        settings=life.settings,
        clock=life.clock,
        progress=seen.append,
    )
    assert (report.blobs, report.records) == (7, 10)
    assert report.content_bytes == 500 + 500 + 150_000 + 70_000 + 20 + 150_000
    assert report.left_out == len(life.records) - 10
    assert len(seen) == report.records
    with BlobStore.open(life.fs, TARGET) as store:
        assert report.used_bytes == store.used_bytes


def test_a_delete_without_its_put_is_copied_while_its_retention_lasts(life: Life) -> None:
    life.put("short", 500, 2000)
    life.delete("short")
    life.roll()
    life.clock.advance(2.5)
    life.compact("all")
    assert [record.kind for record in life.alive("short")] == ["delete"]
    with copied(life) as store, pytest.raises(BlobNotFound):
        store.get("short")


def test_erased_blobs_are_not_copied_whatever_the_clock_shows(life: Life) -> None:
    life.roll()
    life.clock.advance(RETENTION_MS / 1000 + 1)
    life.erase()
    life.clock.jump(-RETENTION_MS / 1000)
    life.check()
    with copied(life) as store:
        assert answers(store, life)["deleted", Include.ALL].__name__ == "BlobDeleted"  # type: ignore[attr-defined]


def test_a_source_without_indexes_is_copied_and_not_changed(life: Life) -> None:
    life.store.close()
    for name in life.fs.list(DIRECTORY):
        if name.endswith(".keys"):
            life.fs.remove(f"{DIRECTORY}/{name}")
    before = life.fs.list(DIRECTORY)
    with copied(life) as store:
        assert store.get("small").read() == life.alive("small")[0].content
    assert life.fs.list(DIRECTORY) == before


def test_invalid_copies_are_refused_before_anything_is_written(life: Life) -> None:
    before = life.fs.list("/data")
    with pytest.raises(BlobTooLarge, match="blob 'large'"):
        copied(life, capacity_bytes=1_000_000, segment_bytes=100_000)
    with pytest.raises(TargetTooSmall, match="has a capacity of 160000 bytes"):
        copied(life, capacity_bytes=160_000, segment_bytes=160_000)
    with pytest.raises(InvalidSetting):
        copied(life, capacity_bytes=1000, segment_bytes=7)
    with pytest.raises(BlobStoreExists):
        copy_store(life.fs, DIRECTORY, DIRECTORY, capacity_bytes=2**20, segment_bytes=2**20)
    life.fs.mkdir("/data/nothing")
    with pytest.raises(InvalidInput, match="holds no log"):
        copy_store(life.fs, "/data/nothing", TARGET, capacity_bytes=2**20, segment_bytes=2**20)
    life.fs.rmdir("/data/nothing")
    assert life.fs.list("/data") == before


def test_a_copy_that_fails_leaves_nothing(life: Life) -> None:
    fs = FaultyFileSystem(life.fs, [Fault("write*", "*copying*", nth=8, kind="ENOSPC")])
    with pytest.raises(WriteFailed):
        copy_store(
            fs,
            DIRECTORY,
            TARGET,
            capacity_bytes=CAPACITY_BYTES,
            segment_bytes=CAPACITY_BYTES // 10,
            clock=life.clock,
            settings=life.settings,
        )
    assert life.fs.list("/data") == ["blobs"]


def test_an_interrupted_copy_is_no_store_and_can_be_repeated(life: Life) -> None:
    life.store.close()
    start = life.fs
    assert isinstance(start, MemoryFileSystem)

    def copy(fs: FaultyFileSystem | MemoryFileSystem) -> None:
        copy_store(
            fs,
            DIRECTORY,
            TARGET,
            capacity_bytes=CAPACITY_BYTES,
            segment_bytes=200_000,
            settings=life.settings,
            clock=life.clock,
        )

    traced = FaultyFileSystem(start.kill_clone(), record=True)
    copy(traced)
    total = sum(line.split()[0] in MUTATING for line in traced.trace)
    assert total > 30
    made = 0
    for nth in range(1, total + 1):
        disk = start.kill_clone()
        with suppress(PowerCut):
            copy(FaultyFileSystem(disk, [Fault("mutating", nth=nth, kind="CRASH")]))
        left = disk.crash_clone(random.Random(nth))
        if left.exists(TARGET):
            made += 1
        else:
            with pytest.raises(NotABlobStore):
                BlobStore.open(left, TARGET)
            copy(left)
            assert left.list("/data") == ["blobs", "copy"]
        assert verify_store(left, TARGET, life.clock).ok
        with BlobStore.open(left, TARGET, settings=life.settings, clock=life.clock) as store:
            assert store.get("large").read() == life.alive("large")[0].content
    assert made < total // 4
