"""Which log is compacted next: one queue per disk, decided from facts and a time.

A pure core: no threads, no clock, no files. The caller feeds facts (`add`, `observe`, `request`),
asks `next` for a disk, reports `started` and `finished`, and calls from one thread at a time.

What may call for a run, in the order of their classes:

| class | calls when |
|---|---|
| admin | somebody asked; first come, first served; also lifts a quarantine |
| unfinished | an earlier run left a journal behind |
| lag | the oldest entry no run has judged is older than `lag_ms_max` |
| threshold | `threshold_bytes` or `threshold_entries` came in since the last run |
| periodic | `period_ms` went by; first visits are spread over a period by a hash of the name |

How `next` decides:

1. A disk with a running log gets nothing: one run per disk.
2. Of the logs with a call that is due, those of the best class come first, and in a class the one
   that has waited longest.
3. A log yields to any other that was waiting already when it got its own last turn, whatever the
   class; only admin requests pass this rule. So a log that always has a reason to run gets one
   turn while an idle one waits: with N logs on a disk a due log waits for at most N runs.
4. A failed run uses nothing up: what called for it still calls, but no sooner than the back-off
   says: `backoff_ms`, doubled by each further failure in a row, at most `backoff_ms_max`.
5. A successful run uses up what had called for it by then: the request (not one made while it
   ran), the observed facts, the visit.

A wall clock that is set back delays no visit by more than a period and no retry by more than
`backoff_ms_max`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from lithify.checksum import crc32c
from lithify.errors import InvalidInput, InvalidSetting
from lithify.settings import check_range

__all__ = [
    "LogStatus",
    "Observation",
    "ScheduleSettings",
    "Scheduler",
    "State",
    "Trigger",
    "Wait",
    "Work",
]

TIME_MS_MAX = 10 * 366 * 24 * 3_600_000
"""Ten years: a longer period, lag or back-off is a mistake of unit."""

COUNT_MAX = 1 << 60
"""More bytes or entries than a log can have."""

NEVER_MS = -(1 << 62)
"""Before every time there is: a log that had no turn yet, a log that is not quarantined."""


class Trigger(StrEnum):
    """Why a run was called for, best class first."""

    ADMIN = "admin"
    UNFINISHED = "unfinished"
    LAG = "lag"
    THRESHOLD = "threshold"
    PERIODIC = "periodic"


RANK = {trigger: rank for rank, trigger in enumerate(Trigger)}


@dataclass(frozen=True, slots=True)
class ScheduleSettings:
    """When to compact without being asked. `None` switches a trigger off."""

    period_ms: int | None = 3_600_000
    threshold_bytes: int | None = 100 << 20
    threshold_entries: int | None = None
    lag_ms_max: int | None = None
    backoff_ms: int = 10_000
    backoff_ms_max: int = 3_600_000

    def __post_init__(self) -> None:
        for name, value, most in (
            ("period_ms", self.period_ms, TIME_MS_MAX),
            ("threshold_bytes", self.threshold_bytes, COUNT_MAX),
            ("threshold_entries", self.threshold_entries, COUNT_MAX),
            ("lag_ms_max", self.lag_ms_max, TIME_MS_MAX),
            ("backoff_ms", self.backoff_ms, TIME_MS_MAX),
            ("backoff_ms_max", self.backoff_ms_max, TIME_MS_MAX),
        ):
            check_range(name, value, 1, most)
        if self.backoff_ms_max < self.backoff_ms:
            limit = f"at least backoff_ms, which is {self.backoff_ms}"
            raise InvalidSetting("backoff_ms_max", self.backoff_ms_max, limit)


@dataclass(frozen=True, slots=True)
class Observation:
    """Facts about a log: what came in at or below the horizon that no run has judged.

    `oldest_unjudged_ms` is the time of the oldest such entry, `None` when there is none.
    """

    new_bytes: int = 0
    new_entries: int = 0
    oldest_unjudged_ms: int | None = None
    unfinished: bool = False


@dataclass(frozen=True, slots=True)
class Work:
    """Compact this log now."""

    name: str
    trigger: Trigger
    reason: str


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing to do before `until_ms`; `None` means before something new is told."""

    until_ms: int | None
    reason: str


class State(StrEnum):
    """What a log is doing as far as the scheduler knows."""

    IDLE = "idle"
    QUEUED = "queued"
    RUNNING = "running"
    QUARANTINED = "quarantined"


@dataclass(frozen=True, slots=True)
class LogStatus:
    """One line of `Scheduler.status`.

    `trigger` is set while queued or running; `until_ms` while quarantined.
    """

    name: str
    disk: str
    state: State
    trigger: Trigger | None
    until_ms: int | None
    failures: int
    last_result: str | None
    last_finished_ms: int | None


@dataclass(frozen=True, slots=True)
class _Request:
    """An admin request; `number` counts them, because two may come in one millisecond."""

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
    visit_ms: int | None
    observation: Observation = field(default_factory=Observation)
    unfinished_ms: int | None = None
    threshold_ms: int | None = None
    request: _Request | None = None
    request_running: _Request | None = None
    running: Trigger | None = None
    turn_ms: int = NEVER_MS
    retry_ms: int = NEVER_MS
    failures: int = 0
    last_result: str | None = None
    last_finished_ms: int | None = None


class Scheduler:
    """Decides; see the module for how."""

    def __init__(self, settings: ScheduleSettings) -> None:
        self.settings = settings
        self._logs: dict[str, _Log] = {}
        self._requests = 0

    def add(self, name: str, disk: str, now_ms: int) -> None:
        """Begin to look after a log. Its first visit comes within a period."""
        if name in self._logs:
            raise InvalidInput(f"log {name} is scheduled already")
        period_ms = self.settings.period_ms
        visit_ms = None if period_ms is None else now_ms + crc32c(name.encode()) % period_ms
        self._logs[name] = _Log(name, disk, visit_ms)

    def remove(self, name: str) -> None:
        """Forget a log, which must not be running."""
        if self._find(name).running is not None:
            raise InvalidInput(f"log {name} is running: cancel the run before removing the log")
        del self._logs[name]

    def observe(self, name: str, observation: Observation, now_ms: int) -> None:
        """Replace what is known about a log's new entries."""
        log = self._find(name)
        log.observation = observation
        log.unfinished_ms = _since(log.unfinished_ms, now_ms, holds=observation.unfinished)
        over = bool(self._over_threshold(observation))
        log.threshold_ms = _since(log.threshold_ms, now_ms, holds=over)

    def request(self, name: str, now_ms: int) -> None:
        """Somebody wants this log compacted: it goes to the head, behind earlier requests.

        A second request changes nothing while the first one waits.
        """
        log = self._find(name)
        log.retry_ms = NEVER_MS
        if log.request is None:
            self._requests += 1
            log.request = _Request(self._requests, now_ms)

    def next(self, disk: str, now_ms: int) -> Work | Wait:
        """What to do on `disk` now. It stays the answer until `started` or a new fact."""
        logs = [log for log in self._logs.values() if log.disk == disk]
        for log in logs:
            if log.running is not None:
                return Wait(None, f"{log.name} is running on disk {disk}")
            self._bound(log, now_ms)
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
            (
                best
                for best in ready
                if best.trigger is Trigger.ADMIN or self._logs[best.name].turn_ms <= waiting_ms
            ),
            key=lambda call: (RANK[call.trigger], call.order, call.name),
        )
        return Work(first.name, first.trigger, first.reason)

    def started(self, work: Work, now_ms: int) -> None:
        """The run that `next` gave has begun."""
        log = self._find(work.name)
        for other in self._logs.values():
            if other.disk == log.disk and other.running is not None:
                raise InvalidInput(
                    f"{work.name} cannot start: {other.name} is running on disk {log.disk}"
                )
        log.running = work.trigger
        log.turn_ms = now_ms
        log.request_running, log.request = log.request, None

    def finished(self, name: str, now_ms: int, error: str | None = None) -> None:
        """The run of `name` has ended, well or with `error`."""
        log = self._find(name)
        if log.running is None:
            raise InvalidInput(f"log {name} is not running, so its run cannot finish")
        log.running = None
        log.last_finished_ms = now_ms
        if error is None:
            log.failures, log.retry_ms, log.last_result = 0, NEVER_MS, "done"
            log.observation, log.unfinished_ms, log.threshold_ms = Observation(), None, None
            if self.settings.period_ms is not None:
                log.visit_ms = log.turn_ms + self.settings.period_ms
        else:
            doublings = min(log.failures, TIME_MS_MAX.bit_length())
            log.failures += 1
            log.last_result = f"failed: {error}"
            backoff_ms = self.settings.backoff_ms << doublings
            log.retry_ms = now_ms + min(backoff_ms, self.settings.backoff_ms_max)
            if log.request is None:
                log.request = log.request_running
        log.request_running = None

    def status(self, now_ms: int) -> list[LogStatus]:
        """Every log, by name."""
        return [self._status(self._logs[name], now_ms) for name in sorted(self._logs)]

    def _status(self, log: _Log, now_ms: int) -> LogStatus:
        best = _best(self._calls(log, now_ms), now_ms)
        until_ms = None
        if log.running is not None:
            state, trigger = State.RUNNING, log.running
        elif log.retry_ms > now_ms:
            state, trigger, until_ms = State.QUARANTINED, None, log.retry_ms
        elif best is not None:
            state, trigger = State.QUEUED, best.trigger
        else:
            state, trigger = State.IDLE, None
        return LogStatus(
            log.name,
            log.disk,
            state,
            trigger,
            until_ms,
            log.failures,
            log.last_result,
            log.last_finished_ms,
        )

    def _bound(self, log: _Log, now_ms: int) -> None:
        """Bring back times that a clock set back has moved too far away."""
        period_ms = self.settings.period_ms
        if log.visit_ms is not None and period_ms is not None:
            log.visit_ms = min(log.visit_ms, now_ms + period_ms)
        log.retry_ms = min(log.retry_ms, now_ms + self.settings.backoff_ms_max)

    def _calls(self, log: _Log, now_ms: int) -> list[_Call]:
        """Everything that calls for a run of `log`, now or at a time already known."""
        found: list[tuple[Trigger, int, str]] = []
        if log.request is not None:
            found.append((Trigger.ADMIN, min(log.request.at_ms, now_ms), "requested"))
        if log.unfinished_ms is not None:
            reason = "an earlier run is unfinished"
            found.append((Trigger.UNFINISHED, min(log.unfinished_ms, now_ms), reason))
        oldest_ms, lag_ms_max = log.observation.oldest_unjudged_ms, self.settings.lag_ms_max
        if oldest_ms is not None and lag_ms_max is not None:
            reason = f"oldest entry no run has judged is {now_ms - oldest_ms} ms old"
            found.append((Trigger.LAG, oldest_ms + lag_ms_max + 1, f"{reason}, limit {lag_ms_max}"))
        if log.threshold_ms is not None:
            reason = self._over_threshold(log.observation)
            found.append((Trigger.THRESHOLD, min(log.threshold_ms, now_ms), reason))
        if log.visit_ms is not None:
            reason = f"every {self.settings.period_ms} ms"
            found.append((Trigger.PERIODIC, log.visit_ms, reason))
        retry = f", retry after failure {log.failures}" if log.failures else ""
        calls = []
        for trigger, called_ms, reason in found:
            due_ms = max(called_ms, log.retry_ms)
            order = max(due_ms, log.turn_ms)
            if trigger is Trigger.ADMIN and log.request is not None:
                order = log.request.number
            calls.append(_Call(log.name, trigger, due_ms, order, reason + retry))
        return calls

    def _over_threshold(self, observation: Observation) -> str:
        """Which threshold was reached, as text; empty when none was."""
        bytes_min, entries_min = self.settings.threshold_bytes, self.settings.threshold_entries
        if bytes_min is not None and observation.new_bytes >= bytes_min:
            return f"{observation.new_bytes} new bytes, threshold {bytes_min}"
        if entries_min is not None and observation.new_entries >= entries_min:
            return f"{observation.new_entries} new entries, threshold {entries_min}"
        return ""

    def _wait(self, disk: str, later: list[_Call]) -> Wait:
        """Nothing is due: say what will be first."""
        if not later:
            return Wait(None, f"nothing calls for a run on disk {disk}")
        first = min(later, key=lambda call: (call.due_ms, call.name))
        log = self._logs[first.name]
        what = "quarantine ends" if first.due_ms == log.retry_ms else f"{first.trigger} run is due"
        return Wait(first.due_ms, f"next on disk {disk}: {first.name}, {what}")

    def _find(self, name: str) -> _Log:
        log = self._logs.get(name)
        if log is None:
            raise InvalidInput(f"no log named {name} is scheduled")
        return log


def _best(calls: list[_Call], now_ms: int) -> _Call | None:
    """The due call of the best class, if any is due."""
    due = [call for call in calls if call.due_ms <= now_ms]
    return min(due, key=lambda call: RANK[call.trigger], default=None)


def _since(before_ms: int | None, now_ms: int, *, holds: bool) -> int | None:
    """Since when a condition holds, given since when it held before."""
    if not holds:
        return None
    return now_ms if before_ms is None else before_ms
