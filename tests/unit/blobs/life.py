"""A blob store beside a naive model of it, with the same clock.

The model is a list of records and a set of those that compaction has dropped. Every operation is
made on both; `check` holds every look, with every option, against the model.
"""

from __future__ import annotations

import io
import pickle
from copy import copy, deepcopy
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from lithify.blobs.erase.erase import EraseProgress
from lithify.blobs.errors import (
    BlobDeleted,
    BlobDeletedForever,
    BlobError,
    BlobExists,
    BlobExpired,
    BlobNotDeleted,
    BlobNotFound,
)
from lithify.blobs.records import NEVER_MS, part_bytes, parts_of
from lithify.blobs.settings import BlobSettings
from lithify.blobs.store import BlobStore
from lithify.blobs.visibility import Include
from lithify.clock import ManualClock
from lithify.compaction.limits.one_run_per_disk import DiskGate
from lithify.compaction.tasks.jobs import LocalJobs
from lithify.fs import MemoryFileSystem, read_file
from lithify.positions import POSITION_MAX
from lithify.testing.faulty_fs import FaultyFileSystem
from tests.hooked_jobs import HookedJobs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from lithify.compaction.reports.report import Report
    from lithify.compaction.tasks.jobs import Check, Progress
    from lithify.fs import FileSystem

T = TypeVar("T")
R = TypeVar("R")

Held = tuple[range, ...]
NOT_HELD: Held = ()

DIRECTORY = "/data/blobs"
SEGMENT_BYTES = 200_000
CAPACITY_BYTES = 100 * SEGMENT_BYTES
RETENTION_MS = 3000
SERVICE = "tests"


@dataclass(frozen=True, slots=True)
class Record:
    kind: str
    blob_id: str
    position: int
    time_ms: int
    expiry_ms: int
    life_version: int
    frame_bytes: int
    content: bytes = b""


class Pickling(LocalJobs):
    """Three tasks side by side, to all appearances in other processes."""

    slots = 3

    def run(
        self,
        name: str,
        function: Callable[[T, Check], R],
        tasks: Sequence[T],
        *,
        weights: Sequence[int] = (),
        check: Check,
        progress: Progress,
    ) -> Iterator[tuple[int, R]]:
        # A file system in memory has to stay the same one, and a clock that stands still too.
        kept: dict[int, object] = {}

        class Pickler(pickle.Pickler):
            def persistent_id(self, thing: object) -> int | None:
                if not isinstance(thing, MemoryFileSystem | FaultyFileSystem | ManualClock):
                    return None
                kept[id(thing)] = thing
                return id(thing)

        class Unpickler(pickle.Unpickler):
            def persistent_load(self, pid: int) -> object:
                return kept[pid]

        def sent(thing: T) -> T:
            data = io.BytesIO()
            Pickler(data).dump(thing)
            data.seek(0)
            found: T = Unpickler(data).load()
            return found

        results = super().run(
            name, function, list(map(sent, tasks)), weights=weights, check=check, progress=progress
        )
        for number, result in reversed(list(results)):
            yield number, pickle.loads(pickle.dumps(result))


class Meddling(HookedJobs):
    """Does something at the beginning of its first job."""

    def __init__(self, act: Callable[[], None]) -> None:
        self._act: Callable[[], None] | None = act

    def before(self, name: str, check: Check) -> None:
        if self._act is not None:
            act, self._act = self._act, None
            act()


def content_of(number: int, size: int) -> bytes:
    word = b"%08d" % number
    return (word * (size // len(word) + 1))[:size]


class Life:
    def __init__(
        self, fs: FileSystem, clock: ManualClock, settings: BlobSettings | None = None
    ) -> None:
        self.fs = fs
        self.clock = clock
        self.settings = settings or BlobSettings(deleted_retention_ms=RETENTION_MS)
        self.records: list[Record] = []
        self.dead: set[int] = set()
        self.erased: set[int] = set()
        self.used: set[str] = {"never put"}
        self.passed: int | None = None
        """Up to which position all replicas have seen the records; None: there are none."""
        self._number = 0
        self.store = BlobStore.create(
            fs,
            DIRECTORY,
            capacity_bytes=CAPACITY_BYTES,
            segment_bytes=SEGMENT_BYTES,
            settings=self.settings,
            clock=clock,
            gate=DiskGate(fs, "/gate"),
        )
        self.store.replicas_passed = lambda: self.passed

    def open(self, fs: FileSystem | None = None) -> None:
        """The next process opens the store, on what may be another disk."""
        self.fs = fs or self.fs
        self.store = BlobStore.open(
            self.fs,
            DIRECTORY,
            settings=self.settings,
            clock=self.clock,
            gate=DiskGate(self.fs, "/gate"),
        )
        self.store.replicas_passed = lambda: self.passed

    def noted(self) -> Life:
        """The model as it is now."""
        life = copy(self)
        life.records, life.dead, life.used = deepcopy((self.records, self.dead, self.used))
        life.erased = set(self.erased)
        return life

    def reborn(self, fs: FileSystem) -> Life:
        """The same life, continued from a disk."""
        life = self.noted()
        life.open(fs)
        return life

    # --- operations ---------------------------------------------------------------------------

    def alive(self, blob_id: str) -> list[Record]:
        return [r for r in self.records if r.blob_id == blob_id and r.position not in self.dead]

    def put(self, blob_id: str, size: int, ttl_ms: int | None = None) -> None:
        self.used.add(blob_id)
        self._number += 1
        now = self.clock.now_ms()
        expiry = None if ttl_ms is None else now + ttl_ms
        content = content_of(self._number, size)
        wrong = BlobExists if self.alive(blob_id) else None
        stream = io.BytesIO(content) if self._number % 2 else content

        def act() -> None:
            self.store.put(
                stream, service=SERVICE, content_type="", expiry_ms=expiry, blob_id=blob_id
            )

        inline = 0 if parts_of(size) else size
        frames = 32 + 72 + len(blob_id) + len(SERVICE) + inline + part_bytes(size)
        fixed = NEVER_MS if expiry is None else expiry
        self._do(act, wrong, "put", blob_id, fixed, 0, frames, content)

    def delete(self, blob_id: str) -> None:
        wrong = self._gone(blob_id)
        records = self.alive(blob_id)
        last = records[-1] if records else None
        expiry, life = (last.expiry_ms, last.life_version) if last else (0, 0)
        self._change(lambda: self.store.delete(blob_id), wrong, "delete", blob_id, expiry, life)

    def ttl(self, blob_id: str, ttl_ms: int | None) -> None:
        wrong = self._gone(blob_id)
        records = self.alive(blob_id)
        life = records[-1].life_version if records else 0
        expiry = None if ttl_ms is None else self.clock.now_ms() + ttl_ms
        fixed = NEVER_MS if expiry is None else expiry
        self._change(lambda: self.store.ttl(blob_id, expiry), wrong, "ttl", blob_id, fixed, life)

    def undelete(self, blob_id: str) -> None:
        records = self.alive(blob_id)
        wrong: type[BlobError] | None = None
        expiry = life = 0
        if not records:
            wrong = BlobNotFound
        elif records[-1].kind != "delete":
            wrong = self._gone(blob_id) or BlobNotDeleted
        else:
            last, now = records[-1], self.clock.now_ms()
            expiry, life = last.expiry_ms, last.life_version + 1
            late = last.time_ms < now - self.settings.deleted_retention_ms
            if late or not self._puts_with_content(records):
                wrong = BlobDeletedForever
            elif now > expiry:
                wrong = BlobExpired
        self._change(lambda: self.store.undelete(blob_id), wrong, "undelete", blob_id, expiry, life)

    def _gone(self, blob_id: str) -> type[BlobError] | None:
        found = self.expected(blob_id, Include.NONE)
        return None if isinstance(found, bytes) else found

    def _change(
        self,
        act: Callable[[], None],
        wrong: type[BlobError] | None,
        kind: str,
        blob_id: str,
        expiry_ms: int,
        life_version: int,
    ) -> None:
        self._do(act, wrong, kind, blob_id, expiry_ms, life_version, 64 + len(blob_id), b"")

    def _do(
        self,
        act: Callable[[], None],
        wrong: type[BlobError] | None,
        kind: str,
        blob_id: str,
        expiry_ms: int,
        life_version: int,
        frame_bytes: int,
        content: bytes,
    ) -> None:
        refused: type[BlobError] | None = None
        try:
            act()
        except BlobError as error:
            refused = type(error)
        assert refused is wrong, (kind, blob_id, refused, wrong)
        if refused is not None:
            return
        position = self.store.log.last_position
        time = self.clock.now_ms()
        if kind != "put":
            time = max(time, self.alive(blob_id)[-1].time_ms + (kind == "ttl"))
        self.records.append(
            Record(kind, blob_id, position, time, expiry_ms, life_version, frame_bytes, content)
        )

    def roll(self) -> None:
        """Seal the active segment if anything is in it."""
        writer = self.store.writer
        with writer.lock:
            writer.ready()
            if self.store.log.active_bytes > 64:
                writer.roll()

    # --- compaction -----------------------------------------------------------------------------

    def compact(self, policy: str) -> Report:
        held = self.held()
        report = self.store.compaction.run(policy=policy, jobs=Pickling())
        if report.declined is not None:
            return report
        self.judged(report.started_ms, self.store.log.manifest.horizon, held)
        if policy == "all":
            live = sum(r.frame_bytes for r in self.records if r.position not in self.dead)
            files = len(self.store.log.manifest.segments)
            overhead = files * (64 + self.store.shape.closing_bytes)
            assert self.store.used_bytes <= live + overhead + SEGMENT_BYTES
        return report

    def compact_meanwhile(self, policy: str, act: Callable[[], None]) -> Report:
        """Compact, and do something else as soon as the run has checked what is there."""
        sealed = [s for s in self.store.log.manifest.segments if s.sealed]
        now, horizon = self.clock.now_ms(), sealed[-1].last_position if sealed else -1

        doomed = self.doomed(now, horizon, self.held())
        report = self.store.compaction.run(policy=policy, jobs=Meddling(act))
        self.dead |= doomed if report.declined is None else set()
        return report

    def judged(self, as_of_ms: int, horizon: int, held: Held = NOT_HELD) -> None:
        """A run that began at this time was published."""
        self.dead |= self.doomed(as_of_ms, horizon, held)

    def doomed(self, as_of_ms: int, horizon: int, held: Held = NOT_HELD) -> set[int]:
        """What a run that begins at this time drops, up to its horizon."""
        doomed: set[int] = set()
        for blob_id in self.used:
            records = self.alive(blob_id)
            if not records:
                continue
            newest = records[-1]
            puts = [r for r in records if r.kind == "put"]
            kept = {newest.position} | {r.position for r in puts}
            expired = as_of_ms > newest.expiry_ms
            unseen = any(newest.position in span for span in held)
            if newest.kind == "delete":
                gone = newest.time_ms < as_of_ms - self.settings.deleted_retention_ms
                if expired or gone:
                    kept = {newest.position} if puts or unseen else set()
            elif expired or not puts:
                kept = {newest.position} if unseen and newest.kind != "put" else set()
            doomed |= {r.position for r in records} - kept
        return {position for position in doomed if position <= horizon}

    def held(self) -> Held:
        """The positions whose changes a replica may not have seen, told by segment."""
        sealed = [s for s in self.store.log.manifest.segments if s.sealed]
        passed = POSITION_MAX if self.passed is None else self.passed
        unseen = [s for s in sealed if s.last_position > passed]
        return tuple(range(s.first_position, s.last_position + 1) for s in unseen)

    # --- erasing ------------------------------------------------------------------------------

    def erase(self, bytes_max: int = 10**9) -> EraseProgress:
        """Take steps until there is nothing to do, then check the files; the sum of the steps."""
        total = EraseProgress(0, 0, idle=False)
        doomed = self.to_be_erased()
        if self.store.erase._began_ms is not None:
            # Rounds are not begun one right after the other.
            self.store.erase._began_ms -= 10**6
        while not total.idle:
            step = self.store.erase.step(bytes_max)
            total = EraseProgress(total.blobs + step.blobs, total.bytes + step.bytes, step.idle)
        self.erased |= doomed
        self.check_erased()
        return total

    def see_erased(self) -> None:
        """Take what is answered for what a round that is not over, or was cut off, has erased."""
        for record in self.records:
            doubtful = record.position in self.to_be_erased() - self.erased
            if doubtful and self.answer(record.blob_id, Include.ALL) is BlobDeleted:
                self.erased.add(record.position)

    def to_be_erased(self) -> set[int]:
        """The puts that a round finds which begins now."""
        sealed = [s.last_position for s in self.store.log.manifest.segments if s.sealed]
        limit, late_ms = max(sealed, default=-1), self.settings.deleted_retention_ms
        found = set()
        for blob_id in self.used:
            records = self.alive(blob_id)
            newest = records[-1] if records else None
            if newest is None or newest.kind != "delete":
                continue
            if newest.time_ms < self.clock.now_ms() - late_ms:
                found |= {r.position for r in records if r.kind == "put" and r.position <= limit}
        return found

    def _puts_with_content(self, records: Sequence[Record]) -> list[Record]:
        return [r for r in records if r.kind == "put" and r.position not in self.erased]

    def check_erased(self) -> None:
        """No file of the store has anything left of what was erased."""
        files = [
            read_file(self.fs, f"{DIRECTORY}/{name}")
            for name in self.fs.list(DIRECTORY)
            if name.endswith(".seg")
        ]
        for record in self.records:
            if record.position in self.erased and len(record.content) >= 8:
                assert not any(record.content[:8] in file for file in files), record.blob_id

    # --- looking --------------------------------------------------------------------------------

    def expected(self, blob_id: str, include: Include) -> bytes | type[BlobError]:
        records = self.alive(blob_id)
        if not records:
            return BlobNotFound
        newest = records[-1]
        puts = [r for r in records if r.kind == "put"]
        if newest.kind == "delete":
            puts = self._puts_with_content(records)
            seen = puts and include in (Include.DELETED, Include.ALL)
            return puts[0].content if seen else BlobDeleted
        if not puts:
            return BlobNotFound
        expired = self.clock.now_ms() > newest.expiry_ms
        if expired and include not in (Include.EXPIRED, Include.ALL):
            return BlobExpired
        return puts[0].content

    def answer(self, blob_id: str, include: Include) -> bytes | type[BlobError]:
        try:
            with self.store.get(blob_id, include=include) as blob:
                newest = self.alive(blob_id)[-1]
                assert blob.info.life_version == newest.life_version
                assert blob.info.expiry_ms == newest.expiry_ms
                assert blob.info.changed_ms == newest.time_ms
                return blob.read()
        except BlobError as error:
            return type(error)

    def check(self) -> None:
        for include in Include:
            seen = {}
            for blob_id in self.used:
                expected = self.expected(blob_id, include)
                answer = self.answer(blob_id, include)
                assert answer == expected, (blob_id, include, answer, expected)
                if isinstance(expected, bytes):
                    put = next(r for r in self.alive(blob_id) if r.kind == "put")
                    seen[put.position] = blob_id
            listed = [(info.position, info.blob_id) for info in self.store.list(include=include)]
            assert listed == sorted(seen.items())
