"""The log and the rewrite against plain system calls on the same file system.

Each function makes what it needs in a directory of its own and gives the cases of one row: the
first is the row, the others are variants of it that are printed for information.

Bodies have 1 KiB, so that a frame has 1,056 bytes. The raw sides use `os` directly, and one buffer
that they keep: they are what the hardware and the kernel allow, not another program.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from bench.harness import Case
from lithify.checksum import crc32c
from lithify.compaction.rewrite.rewrite import RewriteTask, run_rewrite
from lithify.compaction.tasks.jobs import no_check
from lithify.fs import LocalFileSystem
from lithify.live_set import LiveSet
from lithify.log.file_names import MANIFEST
from lithify.log.log import Log
from lithify.log.manifest import DeadRef
from lithify.log.segments.frame import HEADER_BYTES
from lithify.log.segments.segment_file import FOOTER_BYTES
from lithify.settings import Durability, LogSettings

if TYPE_CHECKING:
    from collections.abc import Callable

    from lithify.log.manifest import SegmentRef

__all__ = ["CASES", "FULL", "QUICK", "Sizes"]

BODY_BYTES = 1024
FRAME_BYTES = HEADER_BYTES + BODY_BYTES
BATCH_ENTRIES = 1000
WRITERS = 64
PIECE_BYTES = 2**20
LIVE_PART = 0.25
SEED = 14

FS = LocalFileSystem()


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much one round does."""

    rounds: int
    batches: int
    """Of `BATCH_ENTRIES` entries, appended in a round."""
    ticks: int
    """Appends of each of the `WRITERS`."""
    segment_bytes: int
    segments: int
    """Of the log that is opened."""


FULL = Sizes(rounds=9, batches=254, ticks=300, segment_bytes=256 * 2**20, segments=1000)
QUICK = Sizes(rounds=1, batches=4, ticks=4, segment_bytes=4 * 2**20, segments=8)


def _bodies() -> list[bytes]:
    rng = np.random.default_rng(SEED)
    return [rng.bytes(BODY_BYTES) for _ in range(BATCH_ENTRIES)]


def _fresh(directory: str, durability: Durability) -> Log:
    """An empty log that will not roll."""
    path = f"{directory}/log"
    shutil.rmtree(path, ignore_errors=True)
    settings = LogSettings(durability=durability, segment_bytes_max=2**32 - 1)
    return Log.open(FS, path, kind="bench", settings=settings)


def append(directory: str, sizes: Sizes) -> list[Case]:
    """Batches into a log, without waiting for the disk."""
    bodies = _bodies()
    chunk = os.urandom(BATCH_ENTRIES * FRAME_BYTES)

    def ours() -> float:
        log = _fresh(directory, Durability.NONE)
        began_s = time.perf_counter()
        for _ in range(sizes.batches):
            log.append_many(bodies)
        took_s = time.perf_counter() - began_s
        log.abandon()
        shutil.rmtree(log.directory)
        return took_s

    def raw() -> float:
        path = f"{directory}/raw"
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        began_s = time.perf_counter()
        for _ in range(sizes.batches):
            os.write(fd, chunk)
        took_s = time.perf_counter() - began_s
        os.close(fd)
        os.unlink(path)
        return took_s

    what = f"append_many of {BATCH_ENTRIES:,} bodies of 1 KiB, durability none"
    gigabytes = sizes.batches * len(chunk) / 1e9
    return [Case("append", what, "write of the same bytes", 0.5, gigabytes, "GB", ours, raw)]


def append_always(directory: str, sizes: Sizes) -> list[Case]:
    """Many writers that each wait for the disk, sharing its fsyncs."""
    body = os.urandom(BODY_BYTES)
    chunk = os.urandom(WRITERS * FRAME_BYTES)

    def to_log(write: Callable[[Log], None]) -> float:
        log = _fresh(directory, Durability.ALWAYS)
        began_s = time.perf_counter()
        write(log)
        took_s = time.perf_counter() - began_s
        log.close()
        return took_s

    def to_file(write: Callable[[Callable[[], None]], None]) -> float:
        path = f"{directory}/raw"
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)

        def tick() -> None:
            os.write(fd, chunk)
            os.fdatasync(fd)

        began_s = time.perf_counter()
        write(tick)
        took_s = time.perf_counter() - began_s
        os.close(fd)
        os.unlink(path)
        return took_s

    def loop(tick: Callable[[], None]) -> None:
        for _ in range(sizes.ticks):
            tick()

    variants: dict[str, tuple[str, float | None, Callable[[], float]]] = {
        "append-always": (
            f"{WRITERS} asyncio tasks append 1 KiB and await, durability always",
            0.7,
            lambda: to_log(lambda log: asyncio.run(_append_tasks(log, body, sizes.ticks))),
        ),
        "append-always (threads)": (
            f"{WRITERS} threads append 1 KiB and wait, durability always",
            None,
            lambda: to_log(lambda log: _append_threads(log, body, sizes.ticks)),
        ),
        "append-always (no log)": (
            f"{WRITERS} asyncio tasks await a thread that writes and syncs for all of them",
            None,
            lambda: to_file(lambda tick: asyncio.run(_await_ticks(tick, sizes.ticks))),
        ),
    }
    against = f"write of {WRITERS} frames + fdatasync"
    entries = sizes.ticks * WRITERS
    return [
        Case(name, what, against, at_least, entries, "entries", ours, lambda: to_file(loop))
        for name, (what, at_least, ours) in variants.items()
    ]


async def _append_tasks(log: Log, body: bytes, ticks: int) -> None:
    async def writer() -> None:
        for _ in range(ticks):
            await log.append(body)

    await asyncio.gather(*(writer() for _ in range(WRITERS)))


def _append_threads(log: Log, body: bytes, ticks: int) -> None:
    def writer() -> None:
        for _ in range(ticks):
            log.append(body).result()

    threads = [threading.Thread(target=writer) for _ in range(WRITERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


async def _await_ticks(tick: Callable[[], None], ticks: int) -> None:
    """What tasks that wait for a thread cost by themselves, with no log at all: a lower bound."""
    loop = asyncio.get_running_loop()
    waiting: list[asyncio.Future[None]] = []

    def wake(futures: list[asyncio.Future[None]]) -> None:
        for future in futures:
            future.set_result(None)

    def work(futures: list[asyncio.Future[None]]) -> None:
        tick()
        loop.call_soon_threadsafe(wake, futures)

    async def writer(pool: ThreadPoolExecutor) -> None:
        for _ in range(ticks):
            future = loop.create_future()
            waiting.append(future)
            if len(waiting) == WRITERS:
                pool.submit(work, waiting.copy())
                waiting.clear()
            await future

    with ThreadPoolExecutor(1) as pool:
        await asyncio.gather(*(writer(pool) for _ in range(WRITERS)))


def _sealed(directory: str, sizes: Sizes) -> tuple[Log, SegmentRef]:
    """A log with one full sealed segment, all of it on disk and in the page cache."""
    settings = LogSettings(durability=Durability.NONE, segment_bytes_max=sizes.segment_bytes)
    log = Log.open(FS, f"{directory}/log", kind="bench", settings=settings)
    bodies = _bodies()
    while len(log.manifest.segments) == 1:
        log.append_many(bodies)
    log.roll()
    return log, log.manifest.segments[0]


def _evict(path: str) -> None:
    """Take a file that is on disk out of the page cache; the host below may still have it."""
    fd = os.open(path, os.O_RDONLY)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)


def _read_whole(path: str, buffer: memoryview) -> None:
    with open(path, "rb", buffering=0) as file:
        while file.readinto(buffer):
            pass


def _scan(directory: str, sizes: Sizes, name: str, at_least: float, *, cold: bool) -> list[Case]:
    log, segment = _sealed(directory, sizes)
    path = f"{log.directory}/{segment.name}"
    buffer = memoryview(bytearray(PIECE_BYTES))

    def timed(read: Callable[[], None]) -> float:
        if cold:
            _evict(path)
        began_s = time.perf_counter()
        read()
        return time.perf_counter() - began_s

    def read_log() -> None:
        found = 0
        with log.snapshot("bench") as snapshot:
            for frames in snapshot.read_frames():
                found += len(frames)
                if frames.positions[-1] == segment.last_position:
                    break
        assert found == segment.entries

    where = "evicted" if cold else "in the page cache"
    size = f"{segment.file_bytes / 2**20:.0f} MiB"
    return [
        Case(
            name,
            f"read_frames of a sealed segment, {size}, every CRC checked, {where}",
            f"readinto in 1 MiB pieces, {where}",
            at_least,
            segment.file_bytes / 1e9,
            "GB",
            lambda: timed(read_log),
            lambda: timed(lambda: _read_whole(path, buffer)),
        )
    ]


def scan_cold(directory: str, sizes: Sizes) -> list[Case]:
    """Reading a segment that has to come from the disk."""
    return _scan(directory, sizes, "scan-cold", 0.7, cold=True)


def scan_warm(directory: str, sizes: Sizes) -> list[Case]:
    """Reading a segment that the operating system has in memory."""
    return _scan(directory, sizes, "scan-warm", 0.15, cold=False)


def _with_dead_set(log: Log, segment: SegmentRef) -> SegmentRef:
    """The segment with all but `LIVE_PART` of its entries dead, at random."""
    rng = np.random.default_rng(SEED)
    dead = rng.random(segment.entries) >= LIVE_PART
    data = LiveSet.from_array(segment.first_position + np.flatnonzero(dead)).to_bytes()
    name = "bench.dead"
    with open(f"{log.directory}/{name}", "wb") as file:
        file.write(data)
    count = int(dead.sum())
    ref = DeadRef(name, count, count * FRAME_BYTES, len(data), crc32c(data))
    return replace(segment, dead=ref)


def rewriting(directory: str, sizes: Sizes) -> list[Case]:
    """Copying the live quarter of a segment into a new one."""
    log, whole = _sealed(directory, sizes)
    segment = _with_dead_set(log, whole)
    task = RewriteTask(FS, log.directory, (segment,), "bench-target.seg", created_ms=0)
    path = f"{log.directory}/{segment.name}"
    target = f"{log.directory}/{task.target}"
    buffer = memoryview(bytearray(PIECE_BYTES))

    def timed(copy: Callable[[], None], *, cold: bool) -> float:
        if cold:
            _evict(path)
        began_s = time.perf_counter()
        copy()
        took_s = time.perf_counter() - began_s
        os.unlink(target)
        return took_s

    def ours() -> None:
        assert run_rewrite(task, no_check).target.entries == segment.live_entries

    def raw() -> None:
        _read_whole(path, buffer)
        left = segment.live_bytes
        fd = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        while left:
            left -= os.write(fd, buffer[:left])
        os.fsync(fd)
        os.close(fd)

    size = f"{segment.file_bytes / 2**20:.0f} MiB"
    return [
        Case(
            name,
            f"rewrite of a segment of {size}, {LIVE_PART:.0%} live, incl. fsync, {where}",
            "read all, write the live bytes, fsync",
            0.7,
            segment.file_bytes / 1e9,
            "GB",
            lambda cold=cold: timed(ours, cold=cold),  # type: ignore[misc]
            lambda cold=cold: timed(raw, cold=cold),  # type: ignore[misc]
        )
        for name, where, cold in (
            ("rewrite", "evicted", True),
            ("rewrite (warm)", "in the page cache", False),
        )
    ]


def opening(directory: str, sizes: Sizes) -> list[Case]:
    """Opening a log of many segments."""
    path = f"{directory}/log"
    settings = LogSettings(durability=Durability.NONE)
    log = Log.open(FS, path, kind="bench", settings=settings)
    while len(log.manifest.segments) < sizes.segments:
        log.append(b"sediment")
        log.roll()
    log.close()
    footers = [
        (f"{path}/{segment.name}", segment.file_bytes - FOOTER_BYTES)
        for segment in log.manifest.segments[:-1]
    ]

    def ours() -> float:
        began_s = time.perf_counter()
        opened = Log.open(FS, path, kind="bench", settings=settings)
        took_s = time.perf_counter() - began_s
        assert len(opened.manifest.segments) == sizes.segments
        opened.close()
        return took_s

    def raw() -> float:
        began_s = time.perf_counter()
        with open(f"{path}/{MANIFEST}", "rb", buffering=0) as manifest:
            manifest.readall()
        for name, offset in footers:
            fd = os.open(name, os.O_RDONLY)
            os.pread(fd, FOOTER_BYTES, offset)
            os.close(fd)
        return time.perf_counter() - began_s

    what = f"Log.open of {sizes.segments:,} segments"
    against = "read of MANIFEST and of each footer"
    return [Case("open", what, against, 0.5, 1, "opens", ours, raw)]


CASES: dict[str, Callable[[str, Sizes], list[Case]]] = {
    "append": append,
    "append-always": append_always,
    "scan-cold": scan_cold,
    "scan-warm": scan_warm,
    "rewrite": rewriting,
    "open": opening,
}
"""Row by row, in the order of the table."""
