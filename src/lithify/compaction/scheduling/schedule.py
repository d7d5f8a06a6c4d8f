"""Which log is compacted next on a disk: decided from facts, requests and a time.

A pure core: no threads, no clock, no files. The queue (`run_queue.py`) feeds it facts (`observe`)
and requests, asks `next` for a disk, reports `started` and `finished`, and calls from one thread at
a time.

What may call for a run, in the order of their classes:

| class | calls when |
|---|---|
| admin | a person asked; first come, first served |
| unfinished | an earlier run was killed and left its journal |
| lag | the oldest entry that no run has judged is older than `lag_ms_max` |
| threshold | enough has come in, or died, since the last run: the store says what was reached |
| periodic | `period_ms` has passed since the last run began |

How `next` decides:

1. A disk with a running log gets nothing: one run per disk.
2. Of the logs with a call that is due, those of the best class come first, and in a class the one
   that has waited longest.
3. A log yields to any other that was waiting already when it got its own last turn, whatever the
   class, also with a person's request. So a log that always has a reason to run gets one turn while
   another one waits: with N logs on a disk a due log waits for at most N runs.
4. A failed run uses nothing up: what called for it still calls, but no sooner than the back-off
   says: `REST_MS`, doubled by each further failure in a row, at most `BACKOFF_MS_MAX`. A person's
   request does not wait for that. It is over when its run is, however that ended.
5. Any other run uses up what had called for it: the facts and the visit. After a run that found
   nothing to do, or was cancelled, triggers leave the log alone for `REST_MS`.
6. A run that was begun to finish an earlier one does not use up the visit. A run that was
   interrupted, because its log was closed, uses nothing up and is followed by no pause.

A wall clock that is set back delays no visit by more than a period and no retry by more than its
pause.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from lithify.errors import InvalidInput

__all__ = [
    "BACKOFF_MS_MAX",
    "NOTHING_CALLS",
    "REST_MS",
    "CompactNow",
    "Observation",
    "Result",
    "Schedule",
    "Trigger",
    "Wait",
]

REST_MS = 60_000
"""How long triggers leave a log alone after a run that failed or found nothing to do."""

BACKOFF_MS_MAX = 3_600_000

NEVER_MS = -(1 << 62)
"""Before every time there is: a log that had no turn yet."""


class Trigger(StrEnum):
    """Why a run was called for, best class first."""

    ADMIN = "admin"
    UNFINISHED = "unfinished"
    LAG = "lag"
    THRESHOLD = "threshold"
    PERIODIC = "periodic"


RANK = {trigger: rank for rank, trigger in enumerate(Trigger)}


class Result(StrEnum):
    """How a run ended."""

    DONE = "done"
    NOTHING = "nothing to do"
    CANCELLED = "cancelled"
    INTERRUPTED = "interrupted"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Observation:
    """What a store has found out about a log, and the settings that judge it. `None` is off."""

    oldest_unjudged_ms: int | None = None
    """When the oldest entry came that no run has judged."""
    lag_ms_max: int | None = None
    reached: str = ""
    """Which threshold was reached, as text; empty when none was."""
    period_ms: int | None = None
    unfinished: bool = False


NOTHING_CALLS = Observation()


@dataclass(frozen=True, slots=True)
class CompactNow:
    """Compact this log now."""

    name: str
    trigger: Trigger
    reason: str


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing to do before `until_ms`; `None` means before something new is told."""

    until_ms: int | None
    reason: str


@dataclass(frozen=True, slots=True)
class _Request:
    """A person's request; `number` counts them, because two may come in one millisecond."""

    number: int
    at_ms: int


@dataclass(frozen=True, slots=True)
class _Call:
    """One reason to run the log `name`, due at `due_ms`; `order` is its place in its class."""

    name: str
    trigger: Trigger
    due_ms: int
    order: int
    reason: str


@dataclass(slots=True)
class _Log:
    """Everything known about one log."""

    name: str
    disk: str
    since_ms: int | None
    """When the last run began; None: a visit is due at once."""
    observation: Observation = NOTHING_CALLS
    unfinished_ms: int | None = None
    reached_ms: int | None = None
    requests: list[_Request] = field(default_factory=list)
    running: Trigger | None = None
    turn_ms: int = NEVER_MS
    paused_ms: int = NEVER_MS
    """When the present pause began."""
    pause_ms: int = 0
    failures: int = 0

    @property
    def retry_ms(self) -> int:
        """Triggers count from then on."""
        return self.paused_ms + self.pause_ms


class Schedule:
    """Decides; see the module for how."""

    def __init__(self) -> None:
        self._logs: dict[str, _Log] = {}
        self._requests = 0

    def add(self, name: str, disk: str, since_ms: int | None) -> None:
        """Begin to look after a log whose last run began then; None: its visit is due at once."""
        if name in self._logs:
            raise InvalidInput(f"log {name} is scheduled already")
        self._logs[name] = _Log(name, disk, since_ms)

    def began(self, name: str, since_ms: int | None) -> None:
        """When the last run on a log began; None: its visit is due at once."""
        self._find(name).since_ms = since_ms

    def remove(self, name: str) -> None:
        """Forget a log, which must not be running."""
        if self._find(name).running is not None:
            raise InvalidInput(f"log {name} is running: cancel the run before removing the log")
        del self._logs[name]

    def observe(self, name: str, observation: Observation, now_ms: int) -> None:
        """Replace what is known about a log."""
        log = self._find(name)
        log.observation = observation
        log.unfinished_ms = _since(log.unfinished_ms, now_ms, holds=observation.unfinished)
        log.reached_ms = _since(log.reached_ms, now_ms, holds=bool(observation.reached))

    def request(self, name: str, now_ms: int) -> None:
        """A person wants this log compacted: behind earlier requests, before all triggers."""
        self._requests += 1
        self._find(name).requests.append(_Request(self._requests, now_ms))

    def withdraw_first(self, name: str) -> None:
        """Forget the oldest request for a run on this log."""
        del self._find(name).requests[0]

    def withdraw(self, name: str, now_ms: int) -> None:
        """Forget what calls for a run on this log, which triggers leave alone for a while."""
        log = self._find(name)
        log.requests.clear()
        log.since_ms = now_ms
        self._use_up(log)
        _pause(log, now_ms, REST_MS)

    def next(self, disk: str, now_ms: int) -> CompactNow | Wait:
        """What to do on `disk` now. It stays the answer until `started` or a new fact."""
        logs = [log for log in self._logs.values() if log.disk == disk]
        for log in logs:
            if log.running is not None:
                return Wait(None, f"{log.name} is running on disk {disk}")
        calls = {log.name: self._calls(log, now_ms) for log in logs}
        ready = [best for some in calls.values() if (best := _best(some, now_ms))]
        if not ready:
            return self._wait(disk, [call for some in calls.values() for call in some])
        waiting_ms = min(
            max(self._logs[best.name].turn_ms, min(call.due_ms for call in calls[best.name]))
            for best in ready
        )
        # The one whose last turn is longest ago never yields, so somebody is always left.
        first = min(
            (best for best in ready if self._logs[best.name].turn_ms <= waiting_ms),
            key=lambda call: (RANK[call.trigger], call.order, call.name),
        )
        return CompactNow(first.name, first.trigger, first.reason)

    def calls(self, name: str, now_ms: int) -> Trigger | None:
        """What calls for a run on a log now, if it does not run and something does."""
        log = self._logs.get(name)
        if log is None or log.running is not None:
            return None
        best = _best(self._calls(log, now_ms), now_ms)
        return None if best is None else best.trigger

    def started(self, work: CompactNow, now_ms: int) -> None:
        """The run that `next` gave has begun."""
        log = self._find(work.name)
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
        """The run of `name` has ended."""
        log = self._find(name)
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
        log.observation, log.unfinished_ms, log.reached_ms = NOTHING_CALLS, None, None

    # --- calls ------------------------------------------------------------------------------

    def _calls(self, log: _Log, now_ms: int) -> list[_Call]:
        """Every reason to run this log, due or not."""
        if log.observation is NOTHING_CALLS and not log.requests:
            return []
        _bound(log, now_ms)
        found: list[tuple[Trigger, int, str]] = []
        seen = log.observation
        if log.unfinished_ms is not None:
            found.append((Trigger.UNFINISHED, log.unfinished_ms, "an earlier run was killed"))
        if seen.lag_ms_max is not None and seen.oldest_unjudged_ms is not None:
            age_ms = now_ms - seen.oldest_unjudged_ms
            reason = f"oldest entry no run has judged is {age_ms} ms old, limit {seen.lag_ms_max}"
            found.append((Trigger.LAG, seen.oldest_unjudged_ms + seen.lag_ms_max, reason))
        if log.reached_ms is not None:
            found.append((Trigger.THRESHOLD, log.reached_ms, seen.reached))
        if seen.period_ms is not None:
            due_ms = NEVER_MS if log.since_ms is None else log.since_ms + seen.period_ms
            found.append((Trigger.PERIODIC, due_ms, f"period of {seen.period_ms} ms is over"))
        retry = f", retry after failure {log.failures}" if log.failures else ""
        calls = []
        for trigger, called_ms, reason in found:
            due_ms = max(called_ms, log.retry_ms)
            calls.append(_Call(log.name, trigger, due_ms, max(due_ms, log.turn_ms), reason + retry))
        if log.requests:
            first = log.requests[0]
            calls.append(_Call(log.name, Trigger.ADMIN, first.at_ms, first.number, "a person asks"))
        return calls

    def _wait(self, disk: str, later: list[_Call]) -> Wait:
        """Nothing is due: say what will be first."""
        if not later:
            return Wait(None, f"nothing calls for a run on disk {disk}")
        first = min(later, key=lambda call: (call.due_ms, call.name))
        log = self._logs[first.name]
        what = "its pause ends" if first.due_ms == log.retry_ms else f"{first.trigger} run is due"
        return Wait(first.due_ms, f"next on disk {disk}: {first.name}, {what}")

    def _find(self, name: str) -> _Log:
        log = self._logs.get(name)
        if log is None:
            raise InvalidInput(f"no log named {name} is scheduled")
        return log


def _pause(log: _Log, now_ms: int, pause_ms: int) -> None:
    log.paused_ms, log.pause_ms = now_ms, pause_ms


def _bound(log: _Log, now_ms: int) -> None:
    """Bring back times that a clock set back has moved into the future."""
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


def _best(calls: list[_Call], now_ms: int) -> _Call | None:
    """The due call of the best class, if any is due."""
    due = [call for call in calls if call.due_ms <= now_ms]
    return min(due, key=lambda call: RANK[call.trigger], default=None)


def _since(before_ms: int | None, now_ms: int, *, holds: bool) -> int | None:
    """Since when a condition holds, given since when it held before."""
    if not holds:
        return None
    return now_ms if before_ms is None else before_ms
