"""A log of a few hundred bytes that has one of everything, for tests that check every byte.

retired      000000000001.seg          positions 0 … 2, dropped but not reclaimed
log          000000000002.seg          3 … 6, with a dead set: 4 is dead
             000000000003.seg          7 … 10
             000000000004.seg          11 … 14, active; its last frame may be torn
view         000000000002-a1.seg       3, 5, 6, 7, 9, 10: rewritten from two segments, and
                                       with a dead set of its own: 6 is dead
JOURNAL      a run that stopped after one of two groups was copied
HISTORY      two reports
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from lithify.checksum import crc32c
from lithify.clock import ManualClock
from lithify.compaction.reports.report import Cause, History, Report
from lithify.compaction.rewrite.rewrite import RewriteTask, run_rewrite
from lithify.compaction.run.journal import Journal, RunRecord
from lithify.compaction.tasks.jobs import no_check
from lithify.live_set import LiveSet
from lithify.log.file_names import HISTORY, dead_set_name, segment_name
from lithify.log.log import Log
from lithify.log.manifest import DeadRef

if TYPE_CHECKING:
    from lithify.events import EventSink
    from lithify.fs import FileSystem
    from lithify.log.manifest import Manifest, SegmentRef

DIRECTORY = "/data/small"
KIND = "topic"
ACTIVE = segment_name(4)
LAST = 14


def open_log(fs: FileSystem, directory: str = DIRECTORY, events: EventSink = lambda _: None) -> Log:
    return Log.open(fs, directory, kind=KIND, clock=ManualClock(), events=events)


def build(fs: FileSystem, directory: str = DIRECTORY) -> None:
    """Write it, and go away without closing."""
    log = open_log(fs, directory)
    for first, stop in ((0, 3), (3, 7), (7, 11)):
        for position in range(first, stop):
            body = b"" if position == 5 else b"entry %d" % position
            log.append(body, time_ms=1000 + position * 7 % 5, flags=position == 5, tag=position)
        log.roll()
    publish(log, fs)
    log.drop_head(before=3)
    write_journal_and_history(log, fs)
    for position in range(11, LAST + 1):
        # Each frame vouches for those before it.
        log.append(b"entry %d" % position, time_ms=1000).result()
    log.abandon()


def publish(log: Log, fs: FileSystem) -> None:
    """Make the view and the dead sets."""
    directory = log.directory
    _, second, third, _ = log.manifest.segments
    dead = with_dead_set(fs, directory, second, {4}, "a0")
    sources = (dead, with_dead_set(fs, directory, third, {8}, "a0"))
    task = RewriteTask(fs, directory, sources, segment_name(2, "a1"), created_ms=5)
    target = run_rewrite(task, no_check).target
    fs.remove(f"{directory}/{dead_set_name(third.id, 'a0')}")
    target = with_dead_set(fs, directory, target, {6}, "a2")

    def edit(manifest: Manifest) -> Manifest:
        first, _, third, active = manifest.segments
        return replace(manifest, segments=(first, dead, third, active), view=(target,), horizon=10)

    log.publish(edit, "test")


def with_dead_set(
    fs: FileSystem, directory: str, segment: SegmentRef, positions: set[int], run_id: str
) -> SegmentRef:
    """Write a dead set; every position of it must be an entry with a body of 7 bytes."""
    data = LiveSet.from_iterable(positions).to_bytes()
    name = dead_set_name(segment.id, run_id)
    with fs.open_append(f"{directory}/{name}") as file:
        file.write(data)
        file.fsync()
    ref = DeadRef(name, len(positions), len(positions) * (32 + 7), len(data), crc32c(data))
    return replace(segment, dead=ref)


def report(number: int) -> Report:
    return Report(
        run_id=f"run{number}",
        log=DIRECTORY,
        policy="all",
        trigger="admin",
        started_ms=number,
        finished_ms=number + 1,
        horizon=10,
        generation_before=number,
        generation_after=number,
        result="nothing to do",
    )


def write_journal_and_history(log: Log, fs: FileSystem) -> None:
    history = History(fs, f"{log.directory}/{HISTORY}")
    history.append(report(1))
    history.append(report(2))
    judged = log.manifest.segments[:2]
    record = RunRecord(
        run_id="run3",
        policy="all",
        trigger="admin",
        started_ms=3,
        as_of_ms=3,
        horizon=10,
        generation=log.manifest.generation,
        in_view=False,
        judged=judged,
        dropped=(),
        groups=((2,), (3,)),
        causes={Cause.SUPERSEDED: (2, 14)},
    )
    journal = Journal(fs, log.directory)
    journal.create(record)
    journal.copied(0, judged[0])
