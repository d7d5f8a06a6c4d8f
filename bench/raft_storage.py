"""A Raft member's files: merging them, opening them, and what a live set costs.

The log has commands of 1 KiB in segments of the size that a node gives them.

- `raft-merge`: phase 3 over segments of which 30 % of the entries are live, chosen at random. It
  measures, plans, copies, makes durable and puts in place. Each round has a directory of its own
  with hard links to the same segments, which no run changes. What a round has made is emptied and
  not removed: ext4 reads all inodes that were removed in the last minutes whenever one is
  created, and a round creates as many as there are segments. The raw side reads as many bytes as
  are live from one file, writes them to another, and makes them durable.
- `raft-restart`: the log of a member with a million live entries is opened: snapshot with the state
  of a key-value machine, live indexes, write-ahead log and segments. The raw side reads the files
  once. The note says how much longer it takes until the machine has made a dictionary of its state.
- `raft-live-set`: what a million scattered live indexes add to a snapshot: asking the machine for
  them, and storing them. The raw side writes the same snapshot without any. The note says what they
  take in memory, in the machine and as a set, and the milliseconds that they add.
"""

from __future__ import annotations

import os
import random
import shutil
import time
from dataclasses import dataclass
from itertools import count, islice
from typing import TYPE_CHECKING

import numpy as np

from bench.harness import Case
from lithify.clock import SystemClock
from lithify.fs import LocalFileSystem
from lithify.live_set import LiveSet
from lithify.raft.compaction.group_compaction import GroupCompaction, RunWanted
from lithify.raft.compaction.settings import GroupCompactionSettings
from lithify.raft.core.configuration import Config
from lithify.raft.core.values import SnapshotMeta
from lithify.raft.entry import Entry
from lithify.raft.kv import format as kv_format
from lithify.raft.kv.machine import KvMachine
from lithify.raft.kv.state import KvState
from lithify.raft.storage.file_names import GROUPS
from lithify.raft.storage.segment_file import SegmentAppender, SegmentLimits
from lithify.raft.storage.snapshots.snapshot_file import Head
from lithify.raft.storage.snapshots.snapshot_store import SnapshotPlace, Snapshots
from lithify.raft.storage.storage import RaftStorage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

__all__ = ["CASES", "FULL", "QUICK", "Sizes"]

GROUP = "bench"
VALUE_BYTES = 1024
SEED = 7
READ_BYTES = 2**20

FS = LocalFileSystem()
LIMITS = SegmentLimits()


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much of everything."""

    rounds: int
    entries: int
    """Of 1 KiB, in the segments that are merged."""
    live: int
    """Entries that a restarted member has, and indexes of the live set."""


FULL = Sizes(rounds=3, entries=2**20, live=1_000_000)
QUICK = Sizes(rounds=1, entries=10_000, live=10_000)


def merge(directory: str, sizes: Sizes) -> Iterator[Case]:
    """Phase 3."""
    full = f"{directory}/full"
    last = sizes.entries
    rng = random.Random(SEED)
    live = LiveSet.from_iterable(i for i in range(1, last + 1) if rng.random() < 0.3)
    _write_segments(full, range(1, last + 1))
    # One more, because the newest is not changed.
    _write_segments(full, range(last + 1, last + 2), 10**6)
    _write_snapshot(full, last, [live.to_bytes()], live)
    live_bytes = 0
    numbers = count(1)

    def ours() -> float:
        nonlocal live_bytes
        work = f"{directory}/work-{next(numbers)}"
        shutil.copytree(full, work, copy_function=os.link)
        storage = RaftStorage(FS, work)
        storage.open_groups(_as_live_set)
        own = storage.groups[GROUP]
        settings = GroupCompactionSettings(after_drops=None)
        compactor = GroupCompaction(FS, own.directory, own.log, LIMITS, SystemClock(), settings)
        compactor.request(RunWanted())
        job = compactor.next_job()
        assert job is not None
        os.sync()
        began_s = time.perf_counter()
        outcome = job()
        compactor.done(outcome)
        took_s = time.perf_counter() - began_s
        if outcome.failure is not None:
            raise outcome.failure
        assert outcome.report is not None
        live_bytes = outcome.report.read_bytes
        storage.close()
        for ref in outcome.refs:
            os.truncate(f"{own.directory}/{ref.name}", 0)
        return took_s

    ours()
    source = f"{directory}/live"
    with open(source, "wb") as file:
        pieces = range(live_bytes // READ_BYTES)
        file.writelines(rng.randbytes(READ_BYTES) for _ in pieces)

    def raw() -> float:
        os.sync()
        began_s = time.perf_counter()
        with open(source, "rb", 0) as file, open(f"{source}-copied", "wb", 0) as copied:
            while piece := file.read(READ_BYTES):
                copied.write(piece)
            os.fsync(copied.fileno())
        took_s = time.perf_counter() - began_s
        os.remove(f"{source}-copied")
        return took_s

    gigabytes = last * (VALUE_BYTES + 44) / 1e9
    yield Case(
        "raft-merge",
        f"phase 3 over {gigabytes:.1f} GB of segments, 30 % live",
        "reading the live bytes and writing them, fsync",
        0.5,
        gigabytes,
        "GB",
        ours,
        raw,
    )


def restart(directory: str, sizes: Sizes) -> Iterator[Case]:
    """A member is opened."""
    root = f"{directory}/node"
    machine = KvMachine()
    live = _scattered(sizes.live)
    last = int(live[-1])
    needed = LiveSet.from_array(live)
    _write_segments(root, live.tolist())
    _write_snapshot(root, last, machine.save(_state_of(live)), needed)
    paths = [f"{path}/{name}" for path, _, names in os.walk(root) for name in names]
    size_bytes = sum(map(os.path.getsize, paths))

    loads_s: list[float] = []

    def ours() -> float:
        began_s = time.perf_counter()
        storage = RaftStorage(FS, root)
        storage.open_groups(_of_machine)
        own = storage.groups[GROUP]
        assert own.stored is not None
        opened_s = time.perf_counter()
        state = machine.load(own.snapshots.pieces(own.stored))
        took_s = time.perf_counter() - began_s
        loads_s.append(took_s - (opened_s - began_s))
        assert (len(state.rows), own.log.last_index) == (sizes.live, last)
        storage.close()
        return took_s

    def raw() -> float:
        began_s = time.perf_counter()
        for path in paths:
            with open(path, "rb", 0) as file:
                while file.read(READ_BYTES):
                    pass
        return time.perf_counter() - began_s

    yield Case(
        "raft-restart",
        f"opening a member with {sizes.live:,} live entries of 1 KiB and as many keys",
        "reading its files once",
        0.3,
        size_bytes / 1e9,
        "GB",
        ours,
        raw,
        lambda: f"{1000 * min(loads_s):.0f} ms of it load the machine's state",
    )


def live_set(directory: str, sizes: Sizes) -> Iterator[Case]:
    """Live indexes of a snapshot."""
    machine = KvMachine()
    live = _scattered(sizes.live)
    state = _state_of(live)
    pieces = list(machine.save(state))
    last = int(live[-1])
    found: dict[str, list[float]] = {"ours": [], "raw": []}

    def write(side: str, ask: Callable[[], LiveSet]) -> float:
        began_s = time.perf_counter()
        _write_snapshot(f"{directory}/{side}", last, pieces, ask())
        found[side].append(time.perf_counter() - began_s)
        shutil.rmtree(f"{directory}/{side}")
        return found[side][-1]

    def note() -> str:
        own = 8 * len(state.live)
        megabytes = (own + machine.live_indexes(state).nbytes) / 1e6
        added_ms = 1000 * (min(found["ours"]) - min(found["raw"]))
        fits = "pass" if megabytes < 40 and added_ms < 100 else "miss"
        return f"{megabytes:.0f} MB, under 40, and {added_ms:.0f} ms, under 100: {fits}"

    yield Case(
        "raft-live-set",
        f"a snapshot with {sizes.live:,} scattered live indexes",
        "the same without any",
        None,
        1,
        "snapshots",
        lambda: write("ours", lambda: machine.live_indexes(state)),
        lambda: write("raw", LiveSet.empty),
        note,
    )


CASES: dict[str, Callable[[str, Sizes], Iterable[Case]]] = {
    "raft-merge": merge,
    "raft-restart": restart,
    "raft-live-set": live_set,
}


def _scattered(count: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Indexes, no two of them adjacent."""
    return 1 + np.cumsum(np.random.default_rng(SEED).integers(2, 6, count))


def _state_of(live: np.ndarray[tuple[int], np.dtype[np.int64]]) -> KvState:
    state = KvState()
    for index in live.tolist():
        state.set(b"key %d" % index, index, index, bytes(16))
    return state


def _write_segments(root: str, indexes: Iterable[int], number: int = 1) -> None:
    directory = f"{root}/{GROUPS}/{GROUP}"
    FS.mkdir(directory)
    value = random.Random(SEED).randbytes(VALUE_BYTES)
    left = iter(indexes)
    while some := list(islice(left, LIMITS.entries_max)):
        entries = [Entry(i, 1, kv_format.put(b"key %d" % i, value)) for i in some]
        appender = SegmentAppender.create(FS, directory, GROUP, number, some[0], LIMITS)
        assert appender.append(entries) == len(some)
        appender.close()
        number += 1


def _write_snapshot(root: str, index: int, pieces: Iterable[bytes], live: LiveSet) -> None:
    head = Head(SnapshotMeta(index, 1, Config(frozenset({"n1"}))))
    snapshots = Snapshots(FS, f"{root}/{GROUPS}/{GROUP}")
    snapshots.write(head, pieces, live, SnapshotPlace())


def _as_live_set(_: str, pieces: Iterable[bytes]) -> LiveSet:
    return LiveSet.from_bytes(b"".join(pieces))


def _of_machine(_: str, pieces: Iterable[bytes]) -> LiveSet:
    machine = KvMachine()
    return machine.live_indexes(machine.load(pieces))
