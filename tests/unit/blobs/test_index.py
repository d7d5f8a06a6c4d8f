from __future__ import annotations

import pickle
from typing import TYPE_CHECKING

import numpy as np

from lithify.blobs.build_key_index import open_index, put_index, run_index
from lithify.blobs.index import Bloom, Recent
from lithify.blobs.index_rows import IndexRow, rows_of
from lithify.blobs.records import BlobRecordKind, hash_id
from lithify.clock import ManualClock
from lithify.compaction.tasks.jobs import no_check
from lithify.fs import MemoryFileSystem, read_file
from lithify.log.file_names import key_index_name
from lithify.log.key_index.key_index import COLUMNS, KeyRows
from lithify.positions import POSITION_MAX
from tests.hooked_jobs import HookedJobs
from tests.unit.blobs.life import DIRECTORY, RETENTION_MS, Life

if TYPE_CHECKING:
    from lithify.compaction.tasks.jobs import Check
    from lithify.fs import FileSystem


def may_have(bloom: Bloom, low: int) -> bool:
    bits = bloom.bits(low)
    return int(bloom.words[low & bloom.mask]) & bits == bits


def test_a_bloom_filter_has_all_its_hashes_and_few_others() -> None:
    rng = np.random.default_rng(1)
    hashes = rng.integers(0, 2**64, 20_000, np.uint64)
    bloom = Bloom.of(hashes[:10_000])
    assert all(may_have(bloom, int(value)) for value in hashes[:10_000])
    wrong = sum(may_have(bloom, int(value)) for value in hashes[10_000:])
    assert wrong < 300
    assert not may_have(Bloom.of(hashes[:0]), 5)


def test_rows_go_through_columns_and_a_pickle() -> None:
    recent = Recent(1)
    recent.add(bytes(16), IndexRow(BlobRecordKind.PUT, 4, 3, 70_000, 64, 0, 11, 2**63 - 1))
    recent.add(b"\xff" * 16, IndexRow(BlobRecordKind.DELETE, 5, 1, 70, 9000, 2**31 - 1, 12, 5))
    again = Recent(1)
    again.add_rows(pickle.loads(pickle.dumps(recent.rows())))
    for id_hash in (bytes(16), b"\xff" * 16):
        assert again.find(id_hash) == recent.find(id_hash)
    assert len(rows_of([])) == 0


def test_an_index_from_memory_is_the_one_from_the_segment() -> None:
    fs = MemoryFileSystem()
    life = Life(fs, ManualClock())
    for number, size in enumerate([0, 500, 70_000, 65_536]):
        life.put(f"blob {number}", size, ttl_ms=1000 * number or None)
    life.delete("blob 1")
    life.undelete("blob 1")
    life.ttl("blob 2", None)
    rows = life.store.index.recent.rows()
    life.roll()
    (segment, _) = life.store.log.manifest.segments
    path = f"{DIRECTORY}/{key_index_name(segment.name)}"
    written = read_file(fs, path)
    task = life.store.index.task(segment)
    with open_index(task) as index:
        assert index.rows == len(rows) == 7
    assert run_index(task, no_check) == 7
    assert read_file(fs, path) == written
    put_index(task, rows)
    assert read_file(fs, path) == written
    assert set(COLUMNS) == {name for name in COLUMNS if hasattr(rows, name)}


def half_deleted() -> Life:
    life = Life(MemoryFileSystem(), ManualClock())
    for number in range(12):
        life.put(f"blob {number}", 70_000 if number % 3 else 500)
    for number in range(0, 12, 2):
        life.delete(f"blob {number}")
    life.roll()
    life.clock.advance(2 * RETENTION_MS)
    return life


def check_rewritten(life: Life) -> None:
    """The key index of the first segment is the one that is made from the segment."""
    target = life.store.log.manifest.segments[0]
    path = f"{DIRECTORY}/{key_index_name(target.name)}"
    written = read_file(life.fs, path)
    run_index(life.store.index.task(target), no_check)
    assert read_file(life.fs, path) == written


def test_a_rewritten_segment_has_the_index_that_is_made_from_it() -> None:
    life = half_deleted()
    names = {segment.name for segment in life.store.log.manifest.segments}
    assert life.compact("all").result == "done"
    assert life.store.log.manifest.segments[0].name not in names
    check_rewritten(life)
    life.check()


def test_the_index_of_a_rewritten_segment_does_not_need_those_of_its_sources() -> None:
    life = half_deleted()
    jobs = Losing(life.fs)
    assert life.store.compaction.run(policy="all", jobs=jobs).result == "done"
    assert jobs.lost
    check_rewritten(life)


class Losing(HookedJobs):
    """All key indexes are gone when the rewrite begins."""

    def __init__(self, fs: FileSystem) -> None:
        self._fs = fs
        self.lost: list[str] = []

    def before(self, name: str, check: Check) -> None:
        if name == "rewrite":
            self.lost = [n for n in self._fs.list(DIRECTORY) if n.endswith(".keys")]
            for lost in self.lost:
                self._fs.remove(f"{DIRECTORY}/{lost}")


def test_a_row_that_an_index_lacks_is_not_missing_behind_the_rewrite() -> None:
    life = half_deleted()
    jobs = Shortening(life)
    assert life.store.compaction.run(policy="all", jobs=jobs).result == "done"
    assert jobs.rows > 1
    check_rewritten(life)


class Shortening(HookedJobs):
    """The index of the first segment has one row less when the rewrite begins, and is whole."""

    def __init__(self, life: Life) -> None:
        self._life = life
        self.rows = 0

    def before(self, name: str, check: Check) -> None:
        if name != "rewrite":
            return
        store = self._life.store
        task = store.index.task(store.log.manifest.segments[0])
        with open_index(task) as index:
            rows = index.read()
        self.rows = len(rows)
        # The last blob of those that stay.
        kept = np.argsort(rows.position)
        kept = kept[rows.position[kept] != rows.position[rows.flags == BlobRecordKind.PUT].max()]
        put_index(task, KeyRows(**{name: getattr(rows, name)[kept] for name in COLUMNS}))


def test_the_number_of_cached_rows_is_bounded() -> None:
    fs = MemoryFileSystem()
    life = Life(fs, ManualClock())
    for number in range(300):
        life.put(f"blob {number}", 10)
    life.roll()
    life.store.index.buckets.rows_max = 20
    life.check()
    assert life.store.index.buckets._rows <= 20


def test_a_bucket_finds_all_rows_of_a_blob_in_the_order_of_positions() -> None:
    fs = MemoryFileSystem()
    life = Life(fs, ManualClock())
    names = [f"blob {number}" for number in range(40)]
    for name in names:
        life.put(name, 10)
    for name in names:
        life.delete(name)
        life.undelete(name)
    life.roll()
    life.put("recent", 10)
    index, log = life.store.index, life.store.log
    opened = index.opened(log)
    assert index.opened(log) is opened, "it is made once a generation"
    for name in names:
        found = index.find(opened, hash_id(name, log.manifest.log_id), POSITION_MAX)
        assert found is not None
        assert found.put is not None
        assert (found.newest.kind, found.newest.life_version) == (BlobRecordKind.UNDELETE, 1)
        assert found.put.kind is BlobRecordKind.PUT
        earlier = index.find(opened, hash_id(name, log.manifest.log_id), found.newest.position)
        assert earlier is not None
        assert earlier.newest.kind is BlobRecordKind.DELETE
    life.roll()
    assert index.opened(log) is not opened
