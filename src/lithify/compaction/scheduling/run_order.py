"""The order of runs: decides which log is compacted next on a disk.

A pure core: no threads, no clock, no files. The queue (`run_queue.py`) passes observations
(`observe`) and requests, calls `next` for a disk, and reports `started` and `finished`, all from
one thread at a time.

`triggers.py` says when a run is due, and has the priorities.

How `next` decides:

1. A disk with a running log gets nothing: one run per disk.
2. Of the logs with a due trigger, the best priority comes first; within a priority, the log that
   has waited longest.
3. A log yields to any other that was already waiting when it got its own last turn, whatever the
   priority, also with an admin request. So a log that is always due gets one turn while another one
   waits: with N logs on a disk a due log waits for at most N runs.
4. A failed run consumes nothing: its trigger stays due after a back-off: `REST_MS`, doubled by each
   further failure in a row, at most `BACKOFF_MS_MAX`. Admin requests ignore the back-off. An admin
   request ends with its run, whatever the outcome.
5. Any other run consumes its triggers: observations and period. After a run that had nothing to do,
   or was cancelled, triggers pause for `REST_MS`.
6. A run that resumes an earlier one does not consume the period. A run that was interrupted because
   its log was closed consumes nothing, and no pause follows.

If the wall clock is set back, no periodic run is delayed by more than a period and no retry by more
than its pause.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from lithify.compaction.scheduling.triggers import (
    NEVER_MS,
    NOTHING_DUE,
    RANK,
    Observation,
    Trigger,
    due_times,
)
from lithify.errors import InvalidInput

__all__ = ["BACKOFF_MS_MAX", "REST_MS", "CompactNow", "Result", "Schedule", "Wait"]

REST_MS = 60_000
"""Pause of a log's triggers after a run that failed or had nothing to do."""

BACKOFF_MS_MAX = 3_600_000

FOREVER_MS = 1 << 62
"""Later than any time."""


class Result(StrEnum):
    """The outcome of a run."""

    DONE = "done"
    NOTHING = "nothing to do"
    CANCELLED = "cancelled"
    INTERRUPTED = "interrupted"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class CompactNow:
    """The decision to compact a log now."""

    name: str
    trigger: Trigger
    reason: str


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing to do before `until_ms`; `None`: before new facts arrive."""

    until_ms: int | None
    reason: str


@dataclass(frozen=True, slots=True)
class _Request:
    """An admin request; `number` orders those with the same time."""

    number: int
    at_ms: int


@dataclass(frozen=True, slots=True)
class _Candidate:
    """One due or future run of the log `name`; `order` is its place within its priority."""

    name: str
    trigger: Trigger
    due_ms: int
    order: int
    reason: str


@dataclass(slots=True)
class _Log:
    """The state of one log."""

    name: str
    disk: str
    since_ms: int | None
    """Start of the last run; None: a periodic run is due at once."""
    observation: Observation = NOTHING_DUE
    unfinished_ms: int | None = None
    reached_ms: int | None = None
    requests: list[_Request] = field(default_factory=list)
    running: Trigger | None = None
    turn_ms: int = NEVER_MS
    paused_ms: int = NEVER_MS
    """Start of the current pause."""
    pause_ms: int = 0
    failures: int = 0
    due_ms: int | None = None
    """When its first run is due; None if it has changed since that was computed."""

    @property
    def retry_ms(self) -> int:
        """End of the pause."""
        return self.paused_ms + self.pause_ms


class Schedule:
    """The decision logic; see the module."""

    def __init__(self) -> None:
        self._logs: dict[str, _Log] = {}
        self._requests = 0
        self._clock_ms = NEVER_MS

    def add(self, name: str, disk: str, since_ms: int | None) -> None:
        """Add a log with the start of its last run; None: a periodic run is due at once."""
        if name in self._logs:
            raise InvalidInput(f"log {name} is scheduled already")
        self._logs[name] = _Log(name, disk, since_ms)

    def began(self, name: str, since_ms: int | None) -> None:
        """Set the start of the last run on a log; None: a periodic run is due at once."""
        self._change(name).since_ms = since_ms

    def remove(self, name: str) -> None:
        """Remove a log, which must not be running."""
        if self._find(name).running is not None:
            raise InvalidInput(f"log {name} is running: cancel the run before removing the log")
        del self._logs[name]

    def observe(self, name: str, observation: Observation, now_ms: int) -> None:
        """Replace the observation of a log."""
        if self._find(name).observation == observation:
            return
        log = self._change(name)
        log.observation = observation
        log.unfinished_ms = _since(log.unfinished_ms, now_ms, holds=observation.unfinished)
        log.reached_ms = _since(log.reached_ms, now_ms, holds=bool(observation.reached))
        # Now, as the caller may let others in before the next log, and not for all logs at once.
        self._is_due(log, now_ms)

    def request(self, name: str, now_ms: int) -> None:
        """Add an admin request: after earlier requests, before all triggers."""
        self._requests += 1
        self._change(name).requests.append(_Request(self._requests, now_ms))

    def withdraw_first(self, name: str) -> None:
        """Remove the oldest request for this log."""
        del self._change(name).requests[0]

    def withdraw(self, name: str, now_ms: int) -> None:
        """Remove all requests and triggers of this log, and pause its triggers."""
        log = self._change(name)
        log.requests.clear()
        log.since_ms = now_ms
        self._use_up(log)
        _pause(log, now_ms, REST_MS)

    def next(self, disk: str, now_ms: int) -> CompactNow | Wait:
        """The decision for `disk`. It stays the same until `started` or a new fact."""
        work = self.due(disk, now_ms)
        if work is not None:
            return work
        logs = [log for log in self._logs.values() if log.disk == disk]
        for log in logs:
            if log.running is not None:
                return Wait(None, f"{log.name} is running on disk {disk}")
        return self._wait(disk, [each for log in logs for each in self._candidates(log, now_ms)])

    def due(self, disk: str, now_ms: int) -> CompactNow | None:
        """The run that is due on `disk` now, if any; fast for very many logs of which few are."""
        candidates: dict[str, list[_Candidate]] = {}
        for log in self._logs.values():
            if log.disk == disk:
                if log.running is not None:
                    return None
                if self._is_due(log, now_ms):
                    candidates[log.name] = self._candidates(log, now_ms)
        ready = [best for some in candidates.values() if (best := _best(some, now_ms))]
        if not ready:
            return None
        waiting_ms = min(
            max(self._logs[best.name].turn_ms, min(each.due_ms for each in candidates[best.name]))
            for best in ready
        )
        # The log whose last turn is the oldest never yields, so at least one is left.
        first = min(
            (best for best in ready if self._logs[best.name].turn_ms <= waiting_ms),
            key=lambda each: (RANK[each.trigger], each.order, each.name),
        )
        return CompactNow(first.name, first.trigger, first.reason)

    def due_trigger(self, name: str, now_ms: int) -> Trigger | None:
        """The trigger that is due on a log, if it is not running."""
        log = self._logs.get(name)
        if log is None or log.running is not None or not self._is_due(log, now_ms):
            return None
        best = _best(self._candidates(log, now_ms), now_ms)
        return None if best is None else best.trigger

    def started(self, work: CompactNow, now_ms: int) -> None:
        """Record that the run from `next` has started."""
        log = self._change(work.name)
        for other in self._logs.values():
            if other.disk == log.disk and other.running is not None:
                raise InvalidInput(
                    f"{work.name} cannot start: {other.name} is running on disk {log.disk}"
                )
        log.running = work.trigger
        log.turn_ms = now_ms
        if work.trigger is Trigger.ADMIN:
            del log.requests[0]

    def finished(self, name: str, now_ms: int, result: Result) -> None:
        """Record that the run of `name` has ended."""
        log = self._change(name)
        trigger, log.running = log.running, None
        if trigger is None:
            raise InvalidInput(f"log {name} is not running, so its run cannot finish")
        if result is Result.FAILED:
            doublings = min(log.failures, BACKOFF_MS_MAX.bit_length())
            log.failures += 1
            _pause(log, now_ms, min(REST_MS << doublings, BACKOFF_MS_MAX))
            return
        self._use_up(log)
        if result is Result.INTERRUPTED:
            return
        log.failures = 0
        _pause(log, now_ms, 0 if result is Result.DONE else REST_MS)
        if trigger is not Trigger.UNFINISHED:
            log.since_ms = log.turn_ms

    @staticmethod
    def _use_up(log: _Log) -> None:
        log.observation, log.unfinished_ms, log.reached_ms = NOTHING_DUE, None, None

    # --- candidates -------------------------------------------------------------------------

    def _is_due(self, log: _Log, now_ms: int) -> bool:
        """Is a run of this log due? Computed again only after a change."""
        if now_ms < self._clock_ms:
            # The clock was set back: times that are in the future now are moved.
            for each in self._logs.values():
                each.due_ms = None
        self._clock_ms = now_ms
        if log.due_ms is None:
            candidates = self._candidates(log, now_ms)
            log.due_ms = min((each.due_ms for each in candidates), default=FOREVER_MS)
        return log.due_ms <= now_ms

    def _candidates(self, log: _Log, now_ms: int) -> list[_Candidate]:
        """All runs of this log, due or in the future."""
        if log.observation is NOTHING_DUE and not log.requests:
            return []
        _bound(log, now_ms)
        found = due_times(
            log.observation,
            now_ms,
            unfinished_ms=log.unfinished_ms,
            reached_ms=log.reached_ms,
            since_ms=log.since_ms,
        )
        retry = f", retry after failure {log.failures}" if log.failures else ""
        candidates = []
        for trigger, reached_at_ms, reason in found:
            due_ms = max(reached_at_ms, log.retry_ms)
            candidates.append(
                _Candidate(log.name, trigger, due_ms, max(due_ms, log.turn_ms), reason + retry)
            )
        if log.requests:
            first = log.requests[0]
            candidates.append(
                _Candidate(log.name, Trigger.ADMIN, first.at_ms, first.number, "requested")
            )
        return candidates

    def _wait(self, disk: str, later: list[_Candidate]) -> Wait:
        """Nothing is due: name the first run that will be."""
        if not later:
            return Wait(None, f"no run is due on disk {disk}")
        first = min(later, key=lambda each: (each.due_ms, each.name))
        log = self._logs[first.name]
        what = "its pause ends" if first.due_ms == log.retry_ms else f"{first.trigger} run is due"
        return Wait(first.due_ms, f"next on disk {disk}: {first.name}, {what}")

    def _change(self, name: str) -> _Log:
        """The log, which is about to be changed."""
        log = self._find(name)
        log.due_ms = None
        return log

    def _find(self, name: str) -> _Log:
        log = self._logs.get(name)
        if log is None:
            raise InvalidInput(f"no log named {name} is scheduled")
        return log


def _pause(log: _Log, now_ms: int, pause_ms: int) -> None:
    log.paused_ms, log.pause_ms = now_ms, pause_ms


def _bound(log: _Log, now_ms: int) -> None:
    """Move times back that are in the future because the clock was set back."""
    log.paused_ms = min(log.paused_ms, now_ms)
    log.turn_ms = min(log.turn_ms, now_ms)
    if log.since_ms is not None:
        log.since_ms = min(log.since_ms, now_ms)
    if log.unfinished_ms is not None:
        log.unfinished_ms = min(log.unfinished_ms, now_ms)
    if log.reached_ms is not None:
        log.reached_ms = min(log.reached_ms, now_ms)
    if log.requests and log.requests[0].at_ms > now_ms:
        log.requests = [_Request(each.number, min(each.at_ms, now_ms)) for each in log.requests]


def _best(candidates: list[_Candidate], now_ms: int) -> _Candidate | None:
    """The due candidate with the best priority, if any is due."""
    due = [each for each in candidates if each.due_ms <= now_ms]
    return min(due, key=lambda each: RANK[each.trigger], default=None)


def _since(before_ms: int | None, now_ms: int, *, holds: bool) -> int | None:
    """The time since which a condition holds, given that time before this update."""
    if not holds:
        return None
    return now_ms if before_ms is None else before_ms
