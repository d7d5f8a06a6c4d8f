"""A whole store is found whole; whatever is damaged is named."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from lithify.blobs.build_key_index import put_index, scan_rows
from lithify.blobs.errors import BlobDeleted, NotABlobStore
from lithify.blobs.index import Bloom
from lithify.blobs.offline import verify as verify_module
from lithify.blobs.offline.verify import verify_store
from lithify.blobs.records import (
    BlobRecordKind,
    PutRecord,
    encode_change,
    encode_put,
    flags_of,
    hash_id,
)
from lithify.blobs.settings import StoreShape
from lithify.checksum import crc32c
from lithify.clock import ManualClock
from lithify.compaction.tasks.jobs import no_check
from lithify.errors import InvalidInput, UnsupportedVersion
from lithify.fs import MemoryFileSystem, read_file, write_atomic
from lithify.fs.checked_lines import encode_line
from lithify.live_set import LiveSet
from lithify.log.dead_set.dead_set import DeadSet, Parts
from lithify.log.file_names import ERASE, MANIFEST, dead_set_name
from lithify.log.log import Log
from lithify.log.manifest import DeadRef
from lithify.log.segments.frame import FLAG_ERASED, HEADER_BYTES
from lithify.testing.faulty_fs import Fault, FaultyFileSystem, PowerCut
from tests.unit.blobs.life import CAPACITY_BYTES, DIRECTORY, RETENTION_MS, Life

if TYPE_CHECKING:
    from collections.abc import Callable

    from lithify.blobs.offline.verify import VerifyReport
    from lithify.log.manifest import Manifest

SEGMENT = f"{DIRECTORY}/000000000001.seg"
INDEX = f"{DIRECTORY}/000000000001.keys"


@pytest.fixture
def life() -> Life:
    """Two sealed segments and an active one, with everything that can happen to a blob."""
    life = Life(MemoryFileSystem(), ManualClock())
    life.put("there", 500)
    life.put("large", 150_000)
    life.put("deleted", 500)
    life.delete("deleted")
    life.roll()
    life.clock.advance(RETENTION_MS / 1000 + 1)
    life.put("expired", 500, 10)
    life.put("back", 500)
    life.delete("back")
    life.undelete("back")
    life.ttl("large", 10**6)
    life.roll()
    life.put("recent", 500)
    life.erase()
    life.clock.advance(1)
    return life


def verified(life: Life) -> VerifyReport:
    return verify_store(life.fs, DIRECTORY, life.clock)


def problems(life: Life) -> list[str]:
    return [f"{problem.kind} {problem.where}" for problem in verified(life).problems]


def disk_of(life: Life) -> MemoryFileSystem:
    assert isinstance(life.fs, MemoryFileSystem)
    return life.fs


def test_a_whole_store_is_whole(life: Life) -> None:
    before = {name: disk_of(life).stat(f"{DIRECTORY}/{name}") for name in life.fs.list(DIRECTORY)}
    report = verified(life)
    assert report.problems == []
    assert report.ok
    assert (report.segments, report.records, report.dead_records) == (3, 10, 0)
    assert (report.blobs, report.deleted, report.expired, report.erased) == (6, 1, 1, 1)
    assert report.content_bytes == 500 + 150_000 + 500 + 500
    assert report.used_bytes == life.store.used_bytes
    assert report.capacity_bytes == CAPACITY_BYTES
    assert report.lost_parts == 0
    after = {name: disk_of(life).stat(f"{DIRECTORY}/{name}") for name in life.fs.list(DIRECTORY)}
    assert after == before, "nothing was written"


def test_a_store_is_whole_after_runs_with_dead_sets(life: Life) -> None:
    for policy in ("stats", "all", "stats"):
        life.delete("there") if policy == "all" else None
        life.compact(policy)
        assert verified(life).problems == []
    life.store.close()
    assert verified(life).ok


def test_a_store_larger_than_a_pass_is_read_several_times(
    life: Life, monkeypatch: pytest.MonkeyPatch
) -> None:
    once = verified(life)
    monkeypatch.setattr(verify_module, "PASS_RECORDS", 2)
    assert verified(life) == once


def test_a_directory_without_a_store(life: Life) -> None:
    with pytest.raises(InvalidInput):
        verify_store(life.fs, "/nowhere", life.clock)
    with Log.open(life.fs, "/data/topic", kind="topic"):
        pass
    with pytest.raises(NotABlobStore):
        verify_store(life.fs, "/data/topic", life.clock)


def test_a_damaged_byte_of_the_log_is_named(life: Life) -> None:
    disk_of(life).flip(SEGMENT, 1000)
    report = verified(life)
    assert [problem.kind for problem in report.problems] == ["log"]
    assert f"{SEGMENT} at byte" in report.problems[0].what
    assert str(report.problems[0]).startswith("log: /data/blobs: ")


def test_a_damaged_manifest_is_named(life: Life) -> None:
    disk_of(life).flip(f"{DIRECTORY}/MANIFEST", 50)
    assert problems(life) == [f"log {DIRECTORY}"]


@pytest.mark.parametrize("name", [MANIFEST, ERASE])
def test_a_newer_format_is_not_called_damage(life: Life, name: str) -> None:
    path = f"{DIRECTORY}/{name}"
    life.store.close()
    data = read_file(life.fs, path)
    if name == ERASE:
        data = encode_line(data[9:].decode().strip().replace('"version":1', '"version":9'))
    else:
        data = data.replace(b"manifest 1 ", b"manifest 9 ", 1)
    write_atomic(life.fs, path, data)
    with pytest.raises(UnsupportedVersion, match=f"{path} has format version 9"):
        verified(life)


def test_a_damaged_or_missing_key_index_is_named_and_left(life: Life) -> None:
    disk_of(life).flip(INDEX, disk_of(life).stat(INDEX).size - 1)
    report = verified(life)
    assert report.ok
    assert len(report.warnings) == 1
    assert f"{INDEX} at byte" in report.warnings[0]
    life.fs.remove(INDEX)
    report = verified(life)
    assert report.ok
    assert f"{INDEX} at byte 0: missing" in report.warnings[0]
    assert not life.fs.exists(INDEX)


@pytest.mark.parametrize(
    ("column", "named"),
    [
        ("group", {"index 000000000001.seg", "state there", "state large", "state deleted"}),
        ("event_ms", {"index 000000000001.seg", "state there", "state large", "state deleted"}),
        ("hash_low", {"index 000000000001.seg", "state there", "state large", "state deleted"}),
    ],
)
def test_rows_of_an_index_that_are_not_those_of_the_segment_are_named(
    life: Life, column: str, named: set[str]
) -> None:
    ref = life.store.log.manifest.segments[0]
    task = life.store.index.task(ref)
    rows = scan_rows(task, no_check)
    setattr(rows, column, getattr(rows, column) + 1)
    put_index(task, rows)
    assert set(problems(life)) == named


def test_a_row_too_few_is_named(life: Life) -> None:
    task = life.store.index.task(life.store.log.manifest.segments[0])
    rows = scan_rows(task, no_check)
    for name in rows.__slots__:
        setattr(rows, name, getattr(rows, name)[1:])
    put_index(task, rows)
    assert set(problems(life)) == {"index 000000000001.seg", "state there"}


def test_a_delete_that_was_dropped_before_its_put_is_named() -> None:
    life = Life(MemoryFileSystem(), ManualClock())
    for blob_id in ("there", "deleted"):
        life.put(blob_id, 500)
    life.delete("deleted")
    life.roll()
    assert verified(life).ok
    log = life.store.log
    ref = log.manifest.segments[0]
    data = DeadSet(LiveSet.from_ranges(np.array([2]), np.array([3])), Parts.empty()).to_bytes()
    name = dead_set_name(ref.id, "0" * 12)
    with life.fs.open_append(f"{DIRECTORY}/{name}") as file:
        file.write(data)
    frame_bytes = HEADER_BYTES + len(
        encode_change(BlobRecordKind.DELETE, "deleted", 0, 0, bytes(16))
    )
    dead = DeadRef(name, 1, frame_bytes, len(data), crc32c(data))

    def planted(manifest: Manifest) -> Manifest:
        return replace(manifest, segments=(replace(ref, dead=dead), *manifest.segments[1:]))

    log.publish(planted, "a defect")
    [problem] = verified(life).problems
    assert str(problem) == "state: deleted: has its put, but its delete at position 2 is dead"


def test_a_filter_that_leaves_blobs_out_is_found(
    life: Life, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Bloom, "of", lambda _: Bloom(np.zeros(8, np.uint64)))
    found = {f"state {blob_id}" for blob_id in ("there", "large", "deleted", "expired", "back")}
    assert set(problems(life)) == found


def test_an_answer_that_is_wrong_is_found(life: Life, monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(blob_id: str, *_: object) -> None:
        raise BlobDeleted(blob_id)

    monkeypatch.setattr(verify_module, "visibility_of", wrong)
    assert set(problems(life)) == {f"state {blob_id}" for blob_id in life.used - {"never put"}}


def test_a_damaged_progress_of_erase_is_named(life: Life) -> None:
    disk_of(life).flip(f"{DIRECTORY}/{ERASE}", 40)
    assert problems(life) == [f"erase {DIRECTORY}/{ERASE}"]


def test_an_interrupted_erase_is_no_damage(life: Life) -> None:
    life.delete("large")
    life.clock.advance(RETENTION_MS / 1000 + 1)
    life.store.close()
    fs = FaultyFileSystem(disk_of(life))
    dying = life.reborn(fs)
    fs.add(Fault("overwrite", nth=3, kind="CRASH_AFTER"))
    with suppress(PowerCut):
        dying.store.erase.step(10**9)
    left = disk_of(life).kill_clone()
    report = verify_store(left, DIRECTORY, life.clock)
    assert [problem.kind for problem in report.problems] == ["erase"]
    assert "verify again" in report.problems[0].what
    life.open(left)
    assert verified(life).ok


def test_a_store_above_its_size_is_named(life: Life) -> None:
    small = StoreShape(2 * 100_000, 100_000)
    life.store.log.publish(lambda m: replace(m, state=small.to_state()), "a mistake")
    assert problems(life) == ["file 000000000001.seg"]
    tiny = StoreShape(100_000, 100_000)
    life.store.log.publish(lambda m: replace(m, state=tiny.to_state()), "a mistake")
    assert problems(life) == ["file 000000000001.seg"]
    assert any("its capacity is 100000" in warning for warning in verified(life).warnings)


def put_of(content: bytes, size: int, *, crc: int | None = None) -> Callable[[bytes], bytes]:
    def body(log_id: bytes) -> bytes:
        given = crc32c(content) if crc is None else crc
        put = PutRecord("bad", "s", "", "", 0, 2**60, size, given)
        return encode_put(put, hash_id("bad", log_id)) + content

    return body


def change_with(blob_id: str, hashed: str, kind: BlobRecordKind) -> Callable[[bytes], bytes]:
    return lambda log_id: encode_change(kind, blob_id, 0, 2**60, hash_id(hashed, log_id))


@pytest.mark.parametrize(
    ("body", "flags", "tag", "what"),
    [
        (put_of(b"abc", 3, crc=1), flags_of(BlobRecordKind.PUT), 0, "content has CRC-32C"),
        (put_of(b"", 70_000), flags_of(BlobRecordKind.PUT), 2, "does not follow them"),
        (
            put_of(b"abc", 3),
            flags_of(BlobRecordKind.PUT),
            1,
            "put says it has 1 parts, its size requires 0",
        ),
        (put_of(b"abc", 4), flags_of(BlobRecordKind.PUT), 0, "is not a record"),
        (
            put_of(b"abc", 3),
            flags_of(BlobRecordKind.PUT) | FLAG_ERASED,
            0,
            "put is marked as erased, but is not",
        ),
        (
            put_of(b"abc", 3),
            flags_of(BlobRecordKind.TTL),
            0,
            "is a ttl by its flags and 1 by its body",
        ),
        (
            change_with("bad", "good", BlobRecordKind.TTL),
            flags_of(BlobRecordKind.TTL),
            0,
            "not that of the id",
        ),
        (lambda _: b"x", flags_of(BlobRecordKind.DELETE), 0, "is not a record"),
        (lambda _: b"x" * 40, 0x0900, 0, "is not a record"),
        (lambda _: b"x", flags_of(BlobRecordKind.PART) | FLAG_ERASED, 0, "not all zeros"),
    ],
)
def test_an_invalid_record_is_named(
    body: Callable[[bytes], bytes], flags: int, tag: int, what: str
) -> None:
    life = Life(MemoryFileSystem(), ManualClock())
    log = life.store.log
    log.append(body(log.manifest.log_id), flags=flags, tag=tag).result()
    found = [str(problem) for problem in verified(life).problems if problem.kind == "record"]
    assert "000000000001.seg: byte 64: " in found[0]
    assert what in found[0]


def test_parts_without_a_put_are_counted() -> None:
    life = Life(MemoryFileSystem(), ManualClock())
    life.put("a", 100)
    life.store.log.append(b"part of nothing", flags=flags_of(BlobRecordKind.PART)).result()
    life.put("b", 100_000)
    report = verified(life)
    assert (report.ok, report.lost_parts) == (True, 1)
