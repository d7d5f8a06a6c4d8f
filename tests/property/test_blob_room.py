"""A store of any shape, filled to the brim with blobs of any size, can be emptied and filled again.

Deletes never fail, whatever fills the store, and neither do runs; both also across crashes. Then
the largest blob that the shape takes fits again.
"""

from __future__ import annotations

import random
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lithify.blobs import log_writer
from lithify.blobs.errors import BlobStoreFull
from lithify.blobs.offline.verify import verify_store
from lithify.blobs.records import part_bytes
from lithify.blobs.settings import BlobSettings
from lithify.blobs.store import BlobStore
from lithify.clock import ManualClock
from lithify.fs import MemoryFileSystem

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lithify.blobs.capacity import SpaceUse
    from lithify.blobs.settings import StoreShape

DIRECTORY = "/blobs"
RETENTION_MS = 1000
PUT_BYTES = 32 + 72 + 32 + len("sapplication/octet-stream")
"""Of a put of this test beside its content."""
RUNS_MAX = 3
"""The first drops the puts, the second their deletes; one more may have been interrupted."""


class Crash(Exception):
    """The process dies here."""


class Brim:
    """A store that is filled, emptied, and dies now and then."""

    def __init__(self, segments: int, segment_bytes: int, rng: random.Random) -> None:
        self.rng = rng
        self.fs = MemoryFileSystem()
        self.clock = ManualClock()
        self.settings = BlobSettings(deleted_retention_ms=RETENTION_MS)
        self.capacity_bytes = segments * segment_bytes
        self.store = BlobStore.create(
            self.fs,
            DIRECTORY,
            capacity_bytes=self.capacity_bytes,
            segment_bytes=segment_bytes,
            settings=self.settings,
            clock=self.clock,
        )

    def crash(self) -> None:
        self.store.abandon()
        self.fs = self.fs.crash_clone(self.rng)
        self.reopen()

    def reopen(self) -> None:
        if not self.store.closed:
            self.store.close()
        self.store = BlobStore.open(self.fs, DIRECTORY, settings=self.settings, clock=self.clock)

    def fill(self, sizes: list[int]) -> list[str]:
        """Put blobs of these sizes until none of them fits, nor the smallest blob there is."""
        ids = []
        for size in [*sizes, 0]:
            with suppress(BlobStoreFull):
                while True:
                    ids.append(self.store.put(bytes(size), service="s").blob_id)
        return ids

    def delete(self, ids: list[str]) -> None:
        self.rng.shuffle(ids)
        crashes = set(self.rng.sample(range(len(ids)), min(2, len(ids))))
        for number, blob_id in enumerate(ids):
            if number in crashes:
                self.rng.choice([self.crash, self.reopen])()
            self.store.delete(blob_id)

    def compact(self) -> None:
        """Runs until there is nothing to do; the first one may die at any step."""
        fatal = self.rng.randint(1, 12)
        steps = iter(range(1, 1000))

        def go_on(*_: object) -> None:
            if next(steps) == fatal:
                raise Crash

        with suppress(Crash):
            self.store.compaction.run(progress=go_on)
        self.rng.choice([self.crash, self.reopen])()
        for _ in range(RUNS_MAX):
            self.store.compaction.run()

    def largest(self) -> int:
        """The content of the largest blob that a segment takes."""
        limit = self.store.shape.record_bytes_max - PUT_BYTES
        return max(n for n in range(limit + 1) if (part_bytes(n) or n) <= limit)


def sizes_of(rng: random.Random, largest: int) -> list[int]:
    kinds = [0, 1, 100, 200, 500, 1000, 1400, largest // 2, largest, rng.randint(0, largest)]
    return rng.sample([size for size in kinds if size <= largest], rng.randint(1, 3))


def fill_and_empty(segments: int, segment_bytes: int, rng: random.Random) -> None:
    brim = Brim(segments, segment_bytes, rng)
    largest = brim.largest()
    for _ in range(3):
        ids = brim.fill(sizes_of(rng, largest))
        assert brim.store.used_bytes <= brim.capacity_bytes
        # Everything is live: runs find nothing to drop, again and again, and harm nothing.
        for _ in range(2):
            brim.store.compaction.run()
        brim.delete(ids)
        assert brim.store.used_bytes <= brim.capacity_bytes
        assert verify_store(brim.fs, DIRECTORY, brim.clock).ok
        brim.clock.advance(2 * RETENTION_MS / 1000)
        brim.compact()
        assert brim.store.used_bytes < segment_bytes
        ids = [brim.store.put(bytes(largest), service="s").blob_id]
        brim.delete(ids)
        brim.clock.advance(2 * RETENTION_MS / 1000)
        brim.compact()
    assert verify_store(brim.fs, DIRECTORY, brim.clock).ok


@settings(max_examples=8)
@given(st.integers(2, 5), st.sampled_from([4096, 5000, 16384]), st.randoms())
@example(2, 4096, random.Random(1))
@example(2, 200_000, random.Random(2))
def test_a_full_store_is_emptied_and_filled_again(
    segments: int, segment_bytes: int, rng: random.Random
) -> None:
    fill_and_empty(segments, segment_bytes, rng)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(200))
def test_full_stores_of_many_shapes_are_emptied_and_filled_again(seed: int) -> None:
    rng = random.Random(seed)
    fill_and_empty(rng.randint(2, 12), rng.choice([4096, 4097, 9000, 65536, 300_000]), rng)


def _brimful(shape: StoreShape, _kind: object, after: SpaceUse) -> bool:
    """The rule of a version that kept no room for deletes."""
    return after.bytes(shape) <= shape.capacity_bytes


@pytest.fixture(params=[200, 500, 1000, 1400])
def stuck(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Brim]:
    brim = Brim(4, 65536, random.Random(request.param))
    with monkeypatch.context() as patched:
        patched.setattr(log_writer, "has_room", _brimful)
        brim.fill([request.param])
    assert brim.store.used_bytes > brim.capacity_bytes - 500
    yield brim
    brim.store.close()


def test_a_store_that_was_filled_without_a_reserve_is_emptied(stuck: Brim) -> None:
    stuck.reopen()
    ids = [info.blob_id for info in stuck.store.list()]
    with pytest.raises(BlobStoreFull):
        stuck.store.put(b"", service="s")
    stuck.delete(ids)
    report = verify_store(stuck.fs, DIRECTORY, stuck.clock)
    assert report.ok
    assert any("its capacity is" in warning for warning in report.warnings)
    stuck.clock.advance(2 * RETENTION_MS / 1000)
    stuck.compact()
    stuck.store.put(bytes(stuck.largest()), service="s")
    assert not verify_store(stuck.fs, DIRECTORY, stuck.clock).warnings


def test_deletes_of_a_full_store_are_undone_with_the_help_of_runs() -> None:
    brim = Brim(4, 65536, random.Random(4))
    ids = brim.fill([500])
    brim.delete(ids)
    restored = 0
    while restored < len(ids):
        before = restored
        with suppress(BlobStoreFull):
            while restored < len(ids):
                brim.store.undelete(ids[restored])
                restored += 1
        assert restored > before, "a run freed no space"
        for _ in range(2):
            brim.store.compaction.run()
    assert len(list(brim.store.list())) == len(ids)
    # However often, and from any state, they can be deleted once more.
    brim.delete(ids)
