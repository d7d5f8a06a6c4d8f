"""The blob store against the system calls under it.

Objects have 64 KiB, the largest that are in one record. The store is in this process; what HTTP
costs is another row's business.

A put waits for its fsync, and several threads put at once, so that they share fsyncs. The raw side
writes the same bytes and makes as many fsyncs, evenly between them, as the store has made in the
round before it.

A get is measured with nothing of the store in the page cache, as in a store far larger than that,
and for information with everything in it. The raw side reads the same records of the same files, in
the same random order.
"""

from __future__ import annotations

import os
import random
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bench.blob_compaction import compaction
from bench.blob_statistics import statistics
from bench.cold import drop_from_cache
from bench.harness import Case
from lithify.blobs.build_key_index import IndexTask, read_rows
from lithify.blobs.index_rows import values_of
from lithify.blobs.records import hash_id
from lithify.blobs.settings import BlobSettings
from lithify.blobs.store import BlobStore
from lithify.fs import LocalFileSystem
from lithify.log.key_index.key_index import BUCKETS, COLUMNS
from lithify.log.manifest import read_manifest
from lithify.settings import Durability

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

__all__ = ["CASES", "FULL", "QUICK", "Sizes"]

OBJECT_BYTES = 64 * 1024
WRITERS = 32
SEED = 5

FS = LocalFileSystem()


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much one round does."""

    rounds: int
    puts: int
    stored: int
    """Objects of the store that is read."""
    gets: int
    indexed: int
    """Records of the store whose statistics are asked for."""
    compacted: int
    """Objects of the store that is compacted."""
    segment_bytes: int = 256 * 2**20

    def create(self, directory: str, objects: int, durability: Durability) -> BlobStore:
        """An empty store with room for this many objects."""
        segments = objects * 2 * OBJECT_BYTES // self.segment_bytes + 4
        return BlobStore.create(
            FS,
            directory,
            capacity_bytes=segments * self.segment_bytes,
            segment_bytes=self.segment_bytes,
            settings=BlobSettings(durability=durability),
        )


FULL = Sizes(rounds=7, puts=8192, stored=65_536, gets=4000, indexed=5_000_000, compacted=65_536)
QUICK = Sizes(
    rounds=1, puts=64, stored=64, gets=20, indexed=2000, compacted=64, segment_bytes=2**20
)


@contextmanager
def _counted() -> Iterator[Callable[[], int]]:
    """How many fsyncs this process has made since the block began."""
    made: list[int] = []
    real = os.fdatasync, os.fsync

    def counting(sync: Callable[[int], None]) -> Callable[[int], None]:
        def call(fd: int) -> None:
            made.append(fd)
            sync(fd)

        return call

    os.fdatasync, os.fsync = map(counting, real)  # type: ignore[assignment]
    try:
        yield lambda: len(made)
    finally:
        os.fdatasync, os.fsync = real


# --- put ----------------------------------------------------------------------------------------


def put(directory: str, sizes: Sizes) -> Iterator[Case]:
    """Objects in, by threads that each wait until theirs is durable."""
    content = os.urandom(OBJECT_BYTES)
    fsyncs = 1

    def ours() -> float:
        nonlocal fsyncs
        path = f"{directory}/store"
        with sizes.create(path, sizes.puts, Durability.ALWAYS) as store, _counted() as count:
            began_s = time.perf_counter()
            _put_by_threads(store, content, sizes.puts)
            took_s = time.perf_counter() - began_s
            fsyncs = count()
        shutil.rmtree(path)
        return took_s

    def raw() -> float:
        path = f"{directory}/raw"
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        synced = 0
        began_s = time.perf_counter()
        for number in range(1, sizes.puts + 1):
            os.write(fd, content)
            if number * fsyncs // sizes.puts > synced:
                synced += 1
                os.fdatasync(fd)
        took_s = time.perf_counter() - began_s
        os.close(fd)
        os.unlink(path)
        return took_s

    yield Case(
        "blob-put",
        f"{WRITERS} threads put objects of 64 KiB, fsync shared",
        "write of the same bytes + the same number of fsyncs",
        0.6,
        sizes.puts,
        "objects",
        ours,
        raw,
        lambda: f"{fsyncs} fsyncs for {sizes.puts} puts",
    )


def _put_by_threads(store: BlobStore, content: bytes, puts: int) -> None:
    def some(writer: int) -> None:
        for number in range(writer, puts, WRITERS):
            store.put(content, service="bench", blob_id=f"object {number}")

    with ThreadPoolExecutor(WRITERS) as pool:
        list(pool.map(some, range(WRITERS)))


# --- get ----------------------------------------------------------------------------------------


def get(directory: str, sizes: Sizes) -> Iterator[Case]:
    """Objects out, in random order."""
    path = f"{directory}/store"
    content = os.urandom(OBJECT_BYTES)
    names = [f"object {number}" for number in range(sizes.stored)]
    with sizes.create(path, sizes.stored, Durability.NONE) as store:
        for name in names:
            store.put(content, service="bench", blob_id=name)
    places = _places(path, names)
    rng = random.Random(SEED)
    chosen = rng.sample(sorted(places), min(sizes.gets, len(places)))
    segments = {name for name, _, _ in places.values()}
    files = {name: os.open(f"{path}/{name}", os.O_RDONLY) for name in segments}
    reads = [(files[name], length, at) for name, at, length in map(places.__getitem__, chosen)]

    with BlobStore.open(FS, path) as store:

        def ours() -> float:
            began_s = time.perf_counter()
            for name in chosen:
                with store.get(name) as blob:
                    assert len(blob.read()) == OBJECT_BYTES
            return time.perf_counter() - began_s

        def raw() -> float:
            began_s = time.perf_counter()
            for fd, length, at in reads:
                os.pread(fd, length, at)
            return time.perf_counter() - began_s

        def cold(side: Callable[[], float]) -> float:
            drop_from_cache(f"{path}/{name}" for name in segments)
            return side()

        yield Case(
            "blob-get",
            f"get of objects of 64 KiB, store of {sizes.stored} not in the page cache",
            "pread of the same records, not in the page cache",
            0.6,
            len(chosen),
            "objects",
            lambda: cold(ours),
            lambda: cold(raw),
        )
        yield Case(
            "blob-get (cached)",
            "the same, all in the page cache",
            "pread of the same records, in the page cache",
            None,
            len(chosen),
            "objects",
            ours,
            raw,
        )
    for fd in files.values():
        os.close(fd)


def _places(directory: str, names: Sequence[str]) -> dict[str, tuple[str, int, int]]:
    """(file, offset, length) of the record of each object that is in a sealed segment."""
    manifest = read_manifest(FS, directory)
    by_hash = {hash_id(name, manifest.log_id): name for name in names}
    places = {}
    for ref in manifest.segments:
        if ref.sealed:
            task = IndexTask(FS, directory, ref, manifest.log_id)
            rows, _ = read_rows(task, 0, BUCKETS, tuple(COLUMNS))
            for id_hash, row in values_of(rows, rows.position.argsort()):
                places[by_hash[id_hash]] = ref.name, row.offset, row.length
    return places


CASES: dict[str, Callable[[str, Sizes], Iterator[Case]]] = {
    "blob-put": put,
    "blob-get": get,
    "blob-statistics": lambda directory, sizes: statistics(directory, sizes.indexed),
    "blob-compaction": lambda directory, sizes: compaction(
        directory, sizes.compacted, sizes.segment_bytes
    ),
}
"""Row by row, in the order of the table."""
