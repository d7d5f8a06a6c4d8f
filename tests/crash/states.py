"""States of a log that died at one exact operation, and what recovery makes of them."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pytest

from lithify.compaction.policies.built_in import Limits
from lithify.events import Event, OrphanRemoved, RunRecovered
from lithify.fs import MemoryFileSystem
from lithify.log.file_names import JOURNAL
from lithify.testing.faulty_fs import FaultyFileSystem, PowerCut
from tests.unit.compaction.logs import (
    DIRECTORY,
    body_of,
    compactor_of,
    contents,
    fill,
    open_log,
    strays,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from lithify.compaction.reports.report import Report
    from lithify.fs import FileSystem
    from lithify.log.log import Log
    from lithify.testing.faulty_fs import Fault

SEEDS = range(16)

OLD = list(range(20))
"""Two sealed segments of ten; what the log holds before anything happens to it."""
LIVE = list(range(0, 20, 2))
NEW = 20
"""The position that is appended when an append is what happens."""


@dataclass
class Found:
    """What recovery made of a state."""

    fs: MemoryFileSystem
    log: Log
    events: list[Event]
    positions: list[int]
    run: Report | None
    """The report of a run that recovery finished."""

    def of(self, kind: type[Event]) -> list[Event]:
        return [event for event in self.events if isinstance(event, kind)]

    @property
    def actions(self) -> list[str]:
        """What was done about an unfinished run."""
        return [f"{e.phase}: {e.action}" for e in self.events if isinstance(e, RunRecovered)]

    @property
    def removed(self) -> list[str]:
        return [event.name for event in self.events if isinstance(event, OrphanRemoved)]


def prepared() -> MemoryFileSystem:
    fs = MemoryFileSystem()
    log = open_log(fs)
    fill(log, segments=2)
    log.close()
    return fs


def states(
    act: Callable[[FileSystem], None], *faults: Fault, disk: MemoryFileSystem | None = None
) -> Iterator[MemoryFileSystem]:
    """What `act` may leave when it dies at the last fault: once killed, then by power cuts."""
    disk = disk or prepared()
    with pytest.raises(PowerCut):
        act(FaultyFileSystem(disk, faults))
    yield disk.kill_clone()
    for seed in SEEDS:
        yield disk.crash_clone(random.Random(seed))


def recovered(disk: MemoryFileSystem, *, meanwhile: Callable[[Log], object] | None = None) -> Found:
    events: list[Event] = []
    log = open_log(disk, events=events.append)
    if meanwhile is not None:
        meanwhile(log)
    # Every second one is live: also where the run that was killed came that far.
    compactor = compactor_of(log, disk, LIVE, events=events.append)
    run = compactor.recover()
    found = contents(log)
    assert all(body == body_of(position) for position, body in found.items())
    assert strays(disk, log) == []
    assert not disk.exists(f"{DIRECTORY}/{JOURNAL}")
    reports = [report.run_id for report in compactor.history.newest(9)]
    assert len(reports) == len(set(reports))
    return Found(disk, log, events, list(found), run)


def goes_on(found: Found) -> None:
    """Append, which survives another power cut; compact, reclaim and open again."""
    log = found.log
    last = max(found.positions, default=-1)
    position = log.append(body_of(log.next_position)).result()
    assert position > last
    for seed in range(4):
        left = open_log(found.fs.crash_clone(random.Random(seed)))
        assert list(contents(left)) == [*found.positions, position]
    log.roll()
    compactor = compactor_of(log, found.fs, [*LIVE, position])
    compactor.run()
    compactor.reclaim()
    log.close()
    again = open_log(found.fs)
    assert [*contents(again)] == sorted(
        p for p in {*found.positions, position} if p in LIVE or p == position
    )
    assert strays(found.fs, again) == []


# --- what happens when the power is cut ------------------------------------------------------


def create(fs: FileSystem) -> None:
    open_log(fs)


def append(fs: FileSystem) -> None:
    open_log(fs).append(body_of(NEW)).result()


def roll(fs: FileSystem) -> None:
    log = open_log(fs)
    log.append(body_of(NEW)).result()
    log.roll()


def append_that_rolls(fs: FileSystem) -> None:
    """Here the footer comes before the successor; `roll` makes that first."""
    log = open_log(fs)
    log.append(body_of(NEW)).result()
    log.change_settings(replace(log.settings, segment_bytes_max=1024))
    log.append(bytes(1000))


def drop_head(fs: FileSystem) -> None:
    open_log(fs).drop_head(before=10)


def reclaim(fs: FileSystem) -> None:
    open_log(fs).reclaim()


def close(fs: FileSystem) -> None:
    log = open_log(fs)
    log.append(body_of(NEW))
    log.close()


def compact(fs: FileSystem) -> None:
    """Two groups of one segment each, ten entries live of twenty."""
    limits = Limits(target_bytes_max=5 * 132, target_entries_max=1000)
    compactor_of(open_log(fs), fs, LIVE, limits=limits).run()


# --- disks to begin with ---------------------------------------------------------------------


def retired() -> MemoryFileSystem:
    disk = prepared()
    log = open_log(disk)
    log.drop_head(before=20)
    log.close()
    return disk


ORPHANS = {"000000000001-aa.seg", "000000000002-bb.dead"}


def torn() -> MemoryFileSystem:
    """A log with half a frame at its end and two orphans beside it."""
    disk = prepared()
    append(disk)
    with disk.open_append(f"{DIRECTORY}/000000000003.seg") as file:
        file.write(b"half a frame")
        file.fsync()
    for name in ORPHANS:
        disk.open_append(f"{DIRECTORY}/{name}").close()
    disk.sync_dir(DIRECTORY)
    return disk.kill_clone()
