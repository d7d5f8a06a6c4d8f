"""What a blob store does for those who use it."""

from __future__ import annotations

import io
import random
import tracemalloc
from typing import TYPE_CHECKING

import pytest

from lithify.blobs.errors import (
    BlobDeleted,
    BlobDeletedForever,
    BlobError,
    BlobExists,
    BlobExpired,
    BlobNotDeleted,
    BlobNotFound,
    BlobStoreExists,
    BlobStoreFull,
    BlobTooLarge,
    NotABlobStore,
    RangeNotSatisfiable,
)
from lithify.blobs.settings import BlobSettings
from lithify.blobs.store import BlobStore
from lithify.blobs.visibility import Include
from lithify.clock import ManualClock
from lithify.errors import DamagedFrame, InvalidInput, InvalidSetting, RunRefused
from lithify.fs import LocalFileSystem, MemoryFileSystem
from lithify.log.log import Log
from lithify.testing.faulty_fs import MUTATING, Fault, FaultyFileSystem, PowerCut

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from lithify.fs import FileSystem

SEGMENT = 300_000
SETTINGS = BlobSettings(deleted_retention_ms=1000)


def create(
    fs: FileSystem | None = None,
    clock: ManualClock | None = None,
    *,
    segments: int = 20,
    segment_bytes: int = SEGMENT,
    directory: str = "/blobs",
) -> BlobStore:
    return BlobStore.create(
        fs or MemoryFileSystem(),
        directory,
        capacity_bytes=segments * segment_bytes,
        segment_bytes=segment_bytes,
        settings=SETTINGS,
        clock=clock or ManualClock(),
    )


def read(store: BlobStore, blob_id: str, include: Include = Include.NONE) -> bytes:
    with store.get(blob_id, include=include) as blob:
        return blob.read()


class Trickle(io.RawIOBase):
    """Gives a few bytes at a time."""

    def __init__(self, data: bytes) -> None:
        self._left = io.BytesIO(data)

    def read(self, size: int = -1, /) -> bytes:
        return self._left.read(min(size, 7000))


# --- storing -------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 1, 65_535, 65_536, 65_537, 131_072, 200_001])
@pytest.mark.parametrize("wrap", [bytes, bytearray, memoryview, io.BytesIO, Trickle])
def test_a_content_is_read_as_it_was_put(size: int, wrap: Callable[[bytes], bytes]) -> None:
    store = create()
    content = random.Random(size).randbytes(size)
    info = store.put(wrap(content), service="s")
    assert read(store, info.blob_id) == content
    assert store.head(info.blob_id) == info
    assert info.size == size


def test_the_metadata_of_a_blob_is_returned() -> None:
    clock = ManualClock()
    store = create(clock=clock)
    now = clock.now_ms()
    store.put(
        b"x",
        blob_id="mine",
        service="camera",
        owner="me",
        content_type="image/jpeg",
        metadata={"place": "Ålesund"},
        expiry_ms=now + 10,
    )
    info = store.head("mine")
    put = info.put
    assert (put.service, put.owner, put.content_type) == ("camera", "me", "image/jpeg")
    assert (put.metadata, put.created_ms) == ({"place": "Ålesund"}, now)
    assert (info.expiry_ms, info.life_version, info.deleted) == (now + 10, 0, False)


def test_an_id_is_put_once_also_while_it_is_deleted() -> None:
    store = create()
    store.put(b"x", blob_id="a", service="s")
    with pytest.raises(BlobExists, match="'a'"):
        store.put(b"y", blob_id="a", service="s")
    store.delete("a")
    with pytest.raises(BlobExists):
        store.put(b"y", blob_id="a", service="s")
    assert read(store, "a", Include.DELETED) == b"x"


def test_no_content_is_held_in_memory(tmp_path: Path) -> None:
    size = 48 * 2**20
    store = create(LocalFileSystem(), segment_bytes=2**26, directory=str(tmp_path / "b"))

    class Zeros:
        left = size

        def read(self, wanted: int, /) -> bytes:
            taken = min(wanted, self.left)
            self.left -= taken
            return bytes(taken)

    tracemalloc.start()
    info = store.put(Zeros(), service="s")
    with store.get(info.blob_id) as blob:
        assert sum(map(len, blob)) == size
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 12 * 2**20
    assert not [path for path in (tmp_path / "b").iterdir() if path.suffix == ".tmp"]
    store.close()


# --- ranges --------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [100, 65_536, 65_537, 200_000])
def test_any_range_can_be_read(size: int) -> None:
    store = create()
    rng = random.Random(size)
    content = rng.randbytes(size)
    info = store.put(content, service="s")
    edges = [0, 1, size - 1, size, size + 50, 65_535, 65_536, 65_537, 131_072]
    for start in edges:
        for stop in [*edges, None]:
            if start < size and (stop is None or start < stop):
                with store.get(info.blob_id, span=(start, stop)) as blob:
                    assert blob.read() == content[start:stop], (start, stop)
            else:
                with pytest.raises(RangeNotSatisfiable):
                    store.get(info.blob_id, span=(start, stop))
    assert not store.log.pins()


def test_a_range_is_checked_without_the_rest() -> None:
    fs = MemoryFileSystem()
    store = create(fs)
    info = store.put(bytes(200_000), service="s")
    fs.flip("/blobs/000000000001.seg", 64 + 3 * (32 + 65_536) + 32)
    with store.get(info.blob_id, span=(0, 3 * 65_536)) as blob:
        assert len(blob.read()) == 3 * 65_536
    with store.get(info.blob_id, span=(199_999, None)) as blob, pytest.raises(DamagedFrame):
        blob.read()


# --- visibility ----------------------------------------------------------------------------------


def reads(store: BlobStore, blob_id: str) -> list[str]:
    answers = []
    for include in Include:
        try:
            read(store, blob_id, include)
            answers.append("ok")
        except BlobError as error:
            answers.append(type(error).__name__)
    return answers


def test_the_table_of_answers() -> None:
    clock = ManualClock()
    store = create(clock=clock)
    now = clock.now_ms()
    for name in ("there", "expired", "deleted", "both"):
        expires = name in ("expired", "both")
        store.put(b"x", blob_id=name, service="s", expiry_ms=now + 5 if expires else None)
    store.delete("deleted")
    store.delete("both")
    clock.advance(0.005)
    assert reads(store, "expired") == ["ok"] * 4  # at the very instant
    clock.advance(0.001)
    expired = "BlobExpired"
    deleted = "BlobDeleted"
    assert reads(store, "there") == ["ok"] * 4
    assert reads(store, "expired") == [expired, "ok", expired, "ok"]
    assert reads(store, "deleted") == [deleted, deleted, "ok", "ok"]
    assert reads(store, "both") == [deleted, deleted, "ok", "ok"]
    assert reads(store, "never") == ["BlobNotFound"] * 4
    assert [info.blob_id for info in store.list()] == ["there"]
    assert len(list(store.list(include=Include.ALL))) == 4

    clock.advance(2)
    with store.writer.lock:
        store.writer.roll()
    store.compaction.run()
    assert reads(store, "there") == ["ok"] * 4
    assert reads(store, "expired") == ["BlobNotFound"] * 4
    assert reads(store, "deleted") == [deleted] * 4
    store.compaction.run()
    assert reads(store, "deleted") == ["BlobNotFound"] * 4
    store.put(b"again", blob_id="deleted", service="s")
    assert read(store, "deleted") == b"again"


def test_undelete_works_within_the_retention_only() -> None:
    clock = ManualClock()
    store = create(clock=clock)
    store.put(b"x", blob_id="a", service="s")
    with pytest.raises(BlobNotDeleted):
        store.undelete("a")
    with pytest.raises(BlobNotFound):
        store.undelete("b")
    store.delete("a")
    with pytest.raises(BlobDeleted):
        store.delete("a")
    with pytest.raises(BlobDeleted):
        store.ttl("a", None)
    clock.advance(1)
    store.undelete("a")
    assert store.head("a").life_version == 1
    store.delete("a")
    clock.advance(1.001)
    with pytest.raises(BlobDeletedForever):
        store.undelete("a")


def test_an_expiry_is_moved_both_ways() -> None:
    clock = ManualClock()
    store = create(clock=clock)
    now = clock.now_ms()
    store.put(b"x", blob_id="a", service="s", expiry_ms=now + 5)
    store.ttl("a", None)
    clock.advance(10)
    assert read(store, "a") == b"x"
    store.ttl("a", clock.now_ms())
    clock.advance(0.001)
    with pytest.raises(BlobExpired):
        store.ttl("a", None)
    with pytest.raises(InvalidInput, match="is in the past"):
        store.put(b"x", service="s", expiry_ms=now)


# --- limits --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("capacity", "segment"), [(10_000, 4096), (4096, 8192), (0, 4096), (4096, 100), (2**33, 2**32)]
)
def test_a_shape_must_fit_itself(capacity: int, segment: int) -> None:
    with pytest.raises(InvalidSetting):
        BlobStore.create(
            MemoryFileSystem(), "/blobs", capacity_bytes=capacity, segment_bytes=segment
        )


def test_a_blob_larger_than_a_segment_is_refused_and_changes_nothing() -> None:
    store = create()
    used = store.used_bytes
    for content in (bytes(SEGMENT), io.BytesIO(bytes(SEGMENT)), bytes(SEGMENT - 500)):
        with pytest.raises(BlobTooLarge):
            store.put(content, service="s")
    assert store.used_bytes == used


class Slow(io.RawIOBase):
    """Takes this long to be read."""

    def __init__(self, clock: ManualClock, seconds: float) -> None:
        self._clock, self._seconds = clock, seconds
        self._left = [b"content"]

    def read(self, _: int = -1) -> bytes:
        self._clock.advance(self._seconds)
        return self._left.pop() if self._left else b""


@pytest.mark.parametrize("seconds", [0, 0.5, 100])
def test_a_time_to_live_starts_when_the_content_is_complete(seconds: float) -> None:
    clock = ManualClock()
    store = create(clock=clock)
    blob_id = store.put(Slow(clock, seconds), service="s", ttl_ms=1000).blob_id
    assert store.live_for(store.put(b"", service="s").blob_id, 1000) == clock.now_ms() + 1000
    clock.advance(1)
    assert read(store, blob_id) == b"content"
    clock.advance(0.001)
    with pytest.raises(BlobExpired):
        read(store, blob_id)


@pytest.mark.parametrize("ttl_ms", [0, -1])
def test_no_time_to_live_is_refused_whatever_the_clock_says(ttl_ms: int) -> None:
    clock = ManualClock()
    store = create(clock=clock)
    blob_id = store.put(b"content", service="s").blob_id
    for write in (
        lambda: store.put(Slow(clock, 0), service="s", ttl_ms=ttl_ms),
        lambda: store.put(Slow(clock, 1), service="s", ttl_ms=ttl_ms),
        lambda: store.live_for(blob_id, ttl_ms),
    ):
        with pytest.raises(InvalidInput, match=f"ttl {ttl_ms} ms must be at least 1"):
            write()
    assert read(store, blob_id) == b"content"


def test_an_expiry_that_passed_during_the_upload_is_refused() -> None:
    clock = ManualClock()
    store = create(clock=clock)
    # Twice as long: until the content comes, and until it is seen to end.
    store.put(Slow(clock, 0.5), service="s", expiry_ms=clock.now_ms() + 1000)
    with pytest.raises(InvalidInput, match="is in the past"):
        store.put(Slow(clock, 0.5), service="s", expiry_ms=clock.now_ms() + 999)
    with pytest.raises(InvalidInput, match="not both"):
        store.put(b"", service="s", expiry_ms=clock.now_ms(), ttl_ms=1)


def test_a_full_store_refuses_puts_but_can_be_emptied() -> None:
    clock = ManualClock()
    store = create(clock=clock, segments=3)
    ids: list[str] = []

    def fill() -> None:
        while True:
            ids.append(store.put(bytes(50_000), service="s").blob_id)

    with pytest.raises(BlobStoreFull, match=str(3 * SEGMENT)):
        fill()
    assert store.used_bytes <= 3 * SEGMENT
    assert len(ids) > 14
    for blob_id in ids:
        store.delete(blob_id)
    with pytest.raises(BlobStoreFull):
        store.put(bytes(50_000), service="s")
    clock.advance(2)
    report = store.compaction.run()
    assert report.reclaimed_bytes > SEGMENT
    store.put(bytes(50_000), service="s")
    assert all(segment.file_bytes <= SEGMENT for segment in store.log.manifest.segments)


def test_compacting_a_store_of_one_segment_is_refused() -> None:
    store = create(segments=1)
    with pytest.raises(RunRefused, match="one segment"):
        store.compaction.run()


def test_a_store_is_created_once_and_opened_only_where_it_is() -> None:
    fs = MemoryFileSystem()
    with pytest.raises(NotABlobStore):
        BlobStore.open(fs, "/blobs")
    create(fs).close()
    with pytest.raises(BlobStoreExists):
        create(fs)
    Log.open(fs, "/topic", kind="topic").close()
    with pytest.raises(NotABlobStore):
        BlobStore.open(fs, "/topic")
    with pytest.raises(InvalidInput):
        create(fs, directory="/topic")
    with BlobStore.open(fs, "/blobs") as store:
        assert store.shape.capacity_bytes == 20 * SEGMENT


def test_an_interrupted_creation_is_repeated() -> None:
    whole = FaultyFileSystem(MemoryFileSystem(), record=True)
    create(whole)
    total = sum(line.split()[0] in MUTATING for line in whole.trace)
    for nth in range(1, total + 1):
        disk = MemoryFileSystem()
        fs = FaultyFileSystem(disk)
        fs.add(Fault("mutating", nth=nth, kind="CRASH"))
        with pytest.raises(PowerCut):
            create(fs)
        left = disk.crash_clone(random.Random(nth))
        try:
            store = BlobStore.open(left, "/blobs")
        except NotABlobStore:
            store = create(left)
        store.put(b"x", blob_id="a", service="s")
        assert read(store, "a") == b"x"


def test_a_get_costs_one_bucket_and_one_read() -> None:
    fs = FaultyFileSystem(MemoryFileSystem(), record=True)
    store = create(fs)
    for number in range(60):
        store.put(bytes(20_000), blob_id=f"blob {number}", service="s")
    assert len(store.log.manifest.segments) > 4
    for _ in range(2):
        for number in range(60):
            fs.trace.clear()
            read(store, f"blob {number}")
    # The second time everything but the content is in memory.
    assert [line.split()[0] for line in fs.trace] == ["pread"]


def test_entries_above_a_hold_are_counted_but_not_judged() -> None:
    clock = ManualClock()
    store = create(clock=clock)

    def roll() -> None:
        with store.writer.lock:
            store.writer.roll()

    store.put(b"x", blob_id="a", service="s")
    store.delete("a")
    store.put(b"y", blob_id="b", service="s", expiry_ms=clock.now_ms() + 100)
    roll()
    last = store.log.last_position
    store.undelete("a")
    store.ttl("b", None)
    roll()
    store.put(b"z", blob_id="c", service="s")
    clock.advance(5)
    with store.compaction.holds.place("somebody", last, "tests"):
        assert store.compaction.plan().horizon.position == last
        store.compaction.run()
        assert store.log.manifest.horizon == last
    assert read(store, "a") == b"x"
    assert read(store, "b") == b"y"
    store.compaction.run()
    assert read(store, "a") == b"x"
    assert [info.life_version for info in store.list()] == [1, 0, 0]
