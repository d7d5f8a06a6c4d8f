"""Small logs for the tests of compaction, all in memory."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from itertools import count
from typing import TYPE_CHECKING, TypeVar

from lithify.checksum import crc32c
from lithify.clock import ManualClock
from lithify.compaction.live_set_rules.rule_interface import GivenLiveSet
from lithify.compaction.policies.built_in import Limits
from lithify.compaction.run.compactor import Compactor, RunSettings
from lithify.compaction.tasks.jobs import LocalJobs
from lithify.events import ignore_events
from lithify.live_set import LiveSet
from lithify.log.file_names import dead_set_name
from lithify.log.log import Log
from lithify.log.manifest import DeadRef
from lithify.log.recovery import find_orphans

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from lithify.clock import Clock
    from lithify.compaction.limits.budget import Budget
    from lithify.compaction.live_set_rules.rule_interface import LiveSetRule
    from lithify.compaction.rewrite.rewrite import Rewriting
    from lithify.compaction.tasks.jobs import Check, Jobs, Progress
    from lithify.events import EventSink
    from lithify.fs import FileSystem
    from lithify.log.manifest import SegmentRef

T = TypeVar("T")
R = TypeVar("R")

DIRECTORY = "/data/log"
LIMITS = Limits(target_bytes_max=1 << 20, target_entries_max=10_000)


def open_log(fs: FileSystem, directory: str = DIRECTORY, events: EventSink = ignore_events) -> Log:
    return Log.open(fs, directory, kind="test", clock=ManualClock(), events=events)


def fill(log: Log, segments: int, entries: int = 10, body_bytes: int = 100) -> None:
    """Append and seal `segments` segments; each body says its position."""
    for _ in range(segments):
        first = log.next_position
        bodies = [body_of(position, body_bytes) for position in range(first, first + entries)]
        times = [1000 + position for position in range(first, first + entries)]
        log.append_many(bodies, time_ms=times)
        log.roll()


def body_of(position: int, body_bytes: int = 100) -> bytes:
    return (b"entry %d " % position).ljust(body_bytes, b".")


def contents(log: Log, *, compacted: bool = False) -> dict[int, bytes]:
    with log.snapshot("test") as snapshot:
        return {entry.position: entry.body for entry in snapshot.read(compacted=compacted)}


def positions(log: Log, *, compacted: bool = False) -> list[int]:
    return list(contents(log, compacted=compacted))


def sealed(log: Log) -> tuple[SegmentRef, ...]:
    return log.manifest.segments[:-1]


def strays(fs: FileSystem, log: Log) -> list[str]:
    """Files that neither the manifest nor a journal accounts for."""
    return find_orphans(log.manifest, fs.list(log.directory))


def with_dead(fs: FileSystem, segment: SegmentRef, dead: Iterable[int]) -> SegmentRef:
    """The segment with a dead set in a file of its own; the bytes of dead frames are not known."""
    gone = LiveSet.from_iterable(dead)
    data = gone.to_bytes()
    name = dead_set_name(segment.id, "d")
    with fs.open_append(f"{DIRECTORY}/{name}") as file:
        file.truncate(0)
        file.write(data)
    return replace(segment, dead=DeadRef(name, len(gone), 0, len(data), crc32c(data)))


def compactor_of(
    log: Log,
    fs: FileSystem,
    live: Iterable[int] | LiveSetRule,
    *,
    policy: str = "all",
    options: Mapping[str, float] | None = None,
    in_view: bool = False,
    budget: Budget | None = None,
    limits: Limits = LIMITS,
    clock: Clock | None = None,
    events: EventSink = ignore_events,
    jobs: Jobs | None = None,
    rewriting: Rewriting | None = None,
) -> Compactor:
    rule = GivenLiveSet(LiveSet.from_iterable(live)) if isinstance(live, Iterable) else live
    settings = RunSettings(limits, policy, options or {}, in_view)
    return Compactor(
        log,
        fs,
        rule,
        settings=settings if budget is None else replace(settings, budget=budget),
        clock=clock or ManualClock(),
        events=events,
        jobs=jobs,
        rewriting=rewriting,
        random_bytes=lambda size: next(_names).to_bytes(size, "big"),
    )


_names = count(1)
"""Runs and attempts are counted, so that no two of them have the same name."""


@dataclass
class Interrupted:
    """Works as the local jobs do, and calls `between` before each task."""

    between: Callable[[], None]
    tasks: list[object] = field(default_factory=list)
    slots: int = 1

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
        self.tasks.extend(tasks)

        def interrupted(task: T, check: Check) -> R:
            self.between()
            return function(task, check)

        return LocalJobs().run(
            name, interrupted, tasks, weights=weights, check=check, progress=progress
        )
