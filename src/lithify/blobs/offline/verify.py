"""Checks a blob store against a naive replay of its log, without changing anything.

1. The log: every byte of manifest, segments and dead sets (`log/verify.py`). Damage ends the check,
   because all other problems would follow from it.
2. Files: no segment is larger than the store's segment size, all of them fit into its capacity, and
   `ERASE` is readable. Frames that an erase was overwriting when its process died are not damage:
   the next open finishes them.
3. Records: each one by itself (`replay.py`). An invalid one ends the check: it cannot be indexed.
4. Key indexes: each row against the records of its segment. A missing or damaged index is a warning
   and no problem: it is written without an fsync and rebuilt when it is needed.
5. State: for every blob the newest record and the put, as the store finds them through filters and
   indexes, and the result of each kind of read now, against the replay. A blob that has its put has
   its newest record too: a delete alone in a dead set would bring the blob back.

Memory: the replay holds about 1 KiB per blob, for `PASS_RECORDS` records at a time. A larger store
is read several times, each time for a part of the hashes. In addition, one segment's records.

Any process may call it, even while another process has the store open.
"""

from __future__ import annotations

import secrets
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from lithify.blobs.build_key_index import open_index
from lithify.blobs.erase.journal import read_erase
from lithify.blobs.errors import BlobDeleted, BlobError, BlobExpired, BlobNotFound
from lithify.blobs.index_rows import values_of
from lithify.blobs.offline.read_only_store import check_is_store, open_stored
from lithify.blobs.offline.replay import SegmentReplay
from lithify.blobs.records import KIND_SHIFT, BlobRecordKind
from lithify.blobs.visibility import Include, visibility_of
from lithify.errors import Corrupt, ReadFailed, UnsupportedVersion
from lithify.log.file_names import ERASE
from lithify.log.key_index.key_index import BUCKETS
from lithify.log.open_segments import OpenSegment, read_dead_set
from lithify.log.read_only_log import open_readonly
from lithify.log.segments.scan import scan_frames
from lithify.log.segments.segment_file import SEGMENT_HEADER_BYTES
from lithify.log.verify import verify_log

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from lithify.blobs.index_rows import IndexRow
    from lithify.blobs.offline.read_only_store import StoredBlobs
    from lithify.blobs.offline.replay import Replayed
    from lithify.clock import Clock
    from lithify.fs import FileSystem
    from lithify.log.manifest import SegmentRef
    from lithify.log.reader import Snapshot
    from lithify.log.segments.scan import Frames
    from lithify.log.verify import Verification

__all__ = ["Problem", "VerifyReport", "verify_store"]

PASS_RECORDS = 500_000
PROBLEMS_MAX = 1000


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that is wrong."""

    kind: str
    """`log`, `file`, `erase`, `record`, `index` or `state`."""
    where: str
    """A file, or a blob."""
    what: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.where}: {self.what}"


@dataclass(slots=True)
class VerifyReport:
    """The result of a check."""

    directory: str
    segments: int = 0
    bytes: int = 0
    """Bytes that were checked."""
    records: int = 0
    dead_records: int = 0
    """Records in dead sets; included in `records`."""
    lost_parts: int = 0
    """Parts without a put, left by writes that failed."""
    blobs: int = 0
    """Blobs with at least one record that is not dead."""
    deleted: int = 0
    expired: int = 0
    erased: int = 0
    content_bytes: int = 0
    """Of blobs that are live."""
    used_bytes: int = 0
    capacity_bytes: int = 0
    problems: list[Problem] = field(default_factory=list)
    """The first thousand."""
    problems_found: int = 0
    warnings: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether there is no problem."""
        return not self.problems_found

    def add(self, kind: str, where: str, what: str) -> None:
        """Add a problem."""
        self.problems_found += 1
        if len(self.problems) < PROBLEMS_MAX:
            self.problems.append(Problem(kind, where, what))


@dataclass(slots=True)
class _State:
    """The state of one blob, by the replay."""

    newest: Replayed
    put: Replayed | None
    dead: Replayed | None = None
    """A dead record above the newest one."""


def verify_store(
    fs: FileSystem,
    directory: str,
    clock: Clock,
    *,
    random_bytes: Callable[[int], bytes] = secrets.token_bytes,
    progress: Callable[[int], None] = lambda _: None,
) -> VerifyReport:
    """Check everything; `progress` is called with the bytes checked.

    Damage and unreadable files are part of the report. Raises `InvalidInput` if there is no store,
    and `UnsupportedVersion` if a file was written by a newer Lithify, as `verify_log` does.
    """
    report = VerifyReport(directory)
    try:
        # The next step reports a damaged manifest.
        with suppress(Corrupt, UnsupportedVersion):
            check_is_store(fs, directory)
        _verify(fs, directory, clock, report, random_bytes, progress)
    except ReadFailed as error:
        report.add("file", error.path, str(error))
    except OSError as error:
        report.add("file", error.filename or directory, error.strerror or str(error))
    return report


def _verify(
    fs: FileSystem,
    directory: str,
    clock: Clock,
    report: VerifyReport,
    random_bytes: Callable[[int], bytes],
    progress: Callable[[int], None],
) -> None:
    log = verify_log(fs, directory, progress)
    report.segments, report.bytes = log.segments, log.bytes
    report.warnings += log.warnings
    _check_erase(fs, directory, log, report)
    if log.damage is not None:
        if report.ok:
            report.add("log", directory, str(log.damage))
        return
    with open_readonly(
        fs, directory, owner="verify", clock=clock, token=random_bytes(8).hex()
    ) as snapshot:
        _check_records(fs, directory, snapshot, report)
    if any(problem.kind == "record" for problem in report.problems):
        return
    with open_stored(
        fs, directory, owner="verify", clock=clock, token=random_bytes(8).hex()
    ) as stored:
        _check_sizes(stored, report)
        report.warnings += [f"{error}; it will be rebuilt" for error in stored.wrong]
        passes = min(BUCKETS, -(-max(1, report.records) // PASS_RECORDS))
        for number in range(passes):
            first, stop = BUCKETS * number // passes, BUCKETS * (number + 1) // passes
            _Pass(stored, report, first, stop, clock.now_ms()).run()


def _check_erase(fs: FileSystem, directory: str, log: Verification, report: VerifyReport) -> None:
    """Whether the file `ERASE` is intact, and the log's damage is a frame that it names."""
    path = f"{directory}/{ERASE}"
    try:
        frames = read_erase(fs, directory).frames
    except Corrupt as error:
        report.add("erase", path, str(error))
        return
    torn = {(f"{directory}/{frame.segment}", frame.offset) for frame in frames}
    if isinstance(log.damage, Corrupt) and (log.damage.path, log.damage.offset) in torn:
        what = f"was cut off at {log.damage.path}, byte {log.damage.offset}"
        report.add(
            "erase", path, f"{what}: open the store, which finishes the erase, and verify again"
        )


def _check_sizes(stored: StoredBlobs, report: VerifyReport) -> None:
    manifest, shape = stored.opened.manifest, stored.shape
    for ref in manifest.segments:
        size = stored.fs.stat(f"{stored.directory}/{ref.name}").size
        report.used_bytes += size if ref.sealed else stored.snapshot.tail.end
        if size > shape.segment_bytes:
            what = f"has {size} bytes, segments of the store have {shape.segment_bytes}"
            report.add("file", ref.name, what)
    report.capacity_bytes = shape.capacity_bytes
    if report.used_bytes > shape.capacity_bytes:
        # No damage: deletes are never refused (`blobs/capacity.py`).
        what = f"uses {report.used_bytes} bytes, its capacity is {shape.capacity_bytes}"
        report.warnings.append(f"{stored.directory} {what}")


def _check_records(
    fs: FileSystem, directory: str, snapshot: Snapshot, report: VerifyReport
) -> None:
    """Check every record by itself, with its parts."""
    for ref in snapshot.manifest.segments:

        def problem(offset: int, what: str, name: str = ref.name) -> None:
            report.add("record", name, f"byte {offset}: {what}")

        path, log_id = f"{directory}/{ref.name}", snapshot.manifest.log_id
        replay = SegmentReplay(path, log_id, problem)
        for frames in _frames(fs, directory, snapshot, ref):
            report.records += sum(1 for _ in replay.records(frames))
        replay.end()
        report.lost_parts += replay.lost_parts


def _frames(
    fs: FileSystem, directory: str, snapshot: Snapshot, ref: SegmentRef
) -> Iterator[Frames]:
    """All frames of a segment, dead ones included."""
    if not ref.sealed:
        yield from snapshot.read_frames(ref.first_position)
        return
    segment = OpenSegment(fs, directory, ref)
    with segment.file as file:
        first, end = SEGMENT_HEADER_BYTES, segment.frames_end
        yield from scan_frames(file, first, end, ref.first_position - 1)


class _Pass:
    """One scan of the log, for the blobs of a range of buckets; the first one checks indexes."""

    def __init__(
        self, stored: StoredBlobs, report: VerifyReport, first: int, stop: int, now_ms: int
    ) -> None:
        self._stored = stored
        self._report = report
        self._range = range(first, stop)
        self._now_ms = now_ms
        self._states: dict[bytes, _State] = {}

    def run(self) -> None:
        for ref in self._stored.opened.manifest.segments:
            self._replay(ref)
        for id_hash, state in self._states.items():
            self._check_state(id_hash, state)

    # --- records ----------------------------------------------------------------------------

    def _replay(self, ref: SegmentRef) -> None:
        stored, is_first = self._stored, not self._range.start
        dead = None
        if ref.dead is not None:
            dead = read_dead_set(stored.fs, stored.directory, ref.dead).entries
        # Problems of single records were reported before.
        path, log_id = f"{stored.directory}/{ref.name}", stored.opened.manifest.log_id
        replay = SegmentReplay(path, log_id, lambda *_: None)
        seen: dict[int, Replayed] = {}
        for frames in _frames(stored.fs, stored.directory, stored.snapshot, ref):
            heads = frames.select(frames.flags() >> KIND_SHIFT != BlobRecordKind.PART)
            for record in replay.records(heads):
                is_dead = dead is not None and record.row.position in dead
                if is_first:
                    self._report.dead_records += is_dead
                    seen[record.row.position] = record
                if record.id_hash[7] in self._range:
                    (self._note_dead if is_dead else self._note)(record)
        if is_first and ref.sealed and ref.name not in stored.held:
            self._check_index(ref, seen)

    def _note(self, record: Replayed) -> None:
        state = self._states.get(record.id_hash)
        if state is None:
            state = self._states[record.id_hash] = _State(record, None)
        state.newest, state.dead = record, None
        if record.row.kind is BlobRecordKind.PUT:
            state.put = record

    def _note_dead(self, record: Replayed) -> None:
        state = self._states.get(record.id_hash)
        if state is not None:
            state.dead = record

    def _check_index(self, ref: SegmentRef, seen: dict[int, Replayed]) -> None:
        with open_index(self._stored.index.task(ref)) as index:
            rows = index.read()
        values = values_of(rows, np.arange(len(rows)))
        found = {row.position: (id_hash, row) for id_hash, row in values}
        for position in sorted(found.keys() | seen.keys()):
            if position not in seen:
                what = f"has a row for position {position}, which has no record"
            elif position not in found:
                what = f"has no row for the record at position {position}"
            elif found[position] != (seen[position].id_hash, seen[position].row):
                what = f"position {position}: says {found[position][1]}, is {seen[position].row}"
            else:
                continue
            self._report.add("index", ref.name, what)

    # --- state ------------------------------------------------------------------------------

    def _check_state(self, id_hash: bytes, state: _State) -> None:
        stored, report = self._stored, self._report
        newest, put = state.newest, state.put
        found = stored.index.find(stored.opened, id_hash, stored.snapshot.last_position + 1)
        self._count(state)
        if put is not None and state.dead is not None:
            row = state.dead.row
            what = (
                f"has its put, but its {row.kind.name.lower()} at position {row.position} is dead"
            )
            report.add("state", newest.blob_id, what)
        expected: tuple[IndexRow, IndexRow | None] = (
            newest.row,
            put.row if put is not None else None,
        )
        if found is None:
            report.add("state", newest.blob_id, "is in the log, but the index does not find it")
            return
        if (found.newest, found.put) != expected:
            what = f"the index finds {found.newest} and {found.put}, the log has {expected}"
            report.add("state", newest.blob_id, what)
            return
        for include in Include:
            answered: type[BlobError] | None = None
            try:
                visibility_of(newest.blob_id, found, include, self._now_ms)
            except BlobError as error:
                answered = type(error)
            wanted = _answer(state, include, self._now_ms)
            if answered is not wanted:
                what = f"include={include}: result is {answered}, should be {wanted}"
                report.add("state", newest.blob_id, what)

    def _count(self, state: _State) -> None:
        report, newest, put = self._report, state.newest.row, state.put
        report.blobs += 1
        deleted, expired = newest.kind is BlobRecordKind.DELETE, self._now_ms > newest.expiry_ms
        report.deleted += deleted
        report.expired += expired and not deleted
        report.erased += put is not None and put.erased
        if put is not None and not deleted and not expired:
            report.content_bytes += put.size


def _answer(state: _State, include: Include, now_ms: int) -> type[BlobError] | None:
    """The expected error of a read; None: the blob."""
    newest = state.newest.row
    if newest.kind is BlobRecordKind.DELETE:
        if state.put is not None and include in (Include.DELETED, Include.ALL):
            return None
        return BlobDeleted
    if state.put is None:
        return BlobNotFound
    if now_ms > newest.expiry_ms and include in (Include.NONE, Include.DELETED):
        return BlobExpired
    return None
