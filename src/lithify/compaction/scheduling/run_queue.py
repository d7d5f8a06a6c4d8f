"""The queue of runs: one thread per disk, for all logs of a process.

    queue = RunQueue(clock)
    queue.observe("topic", logs)                  # once a second: evaluates the triggers
    request_id = queue.request(log, run)          # an admin request
    queue.status(log, request_id); queue.cancel(log)
    queue.close()

Topics, blob stores, Raft groups and the history of the metastore share the queue of a process. A
store provides a `ScheduledLog` for each of its logs, which returns observations and executes runs.

1. `run_order.py` decides: admin requests first, then unfinished runs, lag, thresholds, period. No
   log starves; after a failed or idle run its triggers pause.
2. There is one thread per disk, started with the first run there. Two runs on one disk would only
   slow each other down; runs on different disks are independent.
3. The thread takes the disk before it starts a run (`LogRuns.take_disk`). While another process
   compacts there, requests wait, and their status names that process. A new request may overtake
   meanwhile.
4. A request can be cancelled while it waits and while it runs: it has a single `RunControl`.
5. Admin requests are never dropped or merged: each is a run of its own. Up to `WAITING_MAX` of them
   wait per log. A request that may not wait is refused if it would have to.
6. The outcomes of the last `OUTCOMES_MAX` requests are kept in memory.

Thread-safe.
"""

from __future__ import annotations

import secrets
import threading
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol

from lithify.compaction.limits.one_run_per_disk import disk_in_use, disk_owner
from lithify.compaction.reports.status import CompactionState, CompactionStatus
from lithify.compaction.run.control import WAITING, RunControl
from lithify.compaction.scheduling.run_order import CompactNow, Result, Schedule
from lithify.compaction.scheduling.triggers import Trigger
from lithify.compaction.tasks.jobs import LocalJobs
from lithify.errors import (
    InvalidInput,
    LithifyError,
    LogClosed,
    RunCancelled,
    RunRefused,
    RunSuspended,
)
from lithify.exit_codes import OUTCOME_UNKNOWN
from lithify.logger import get_logger

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from contextlib import AbstractContextManager

    from lithify.clock import Clock
    from lithify.compaction.reports.report import Report
    from lithify.compaction.run.log_runs import LogRuns
    from lithify.compaction.scheduling.triggers import Observation
    from lithify.compaction.tasks.jobs import Jobs

    Run = Callable[[Jobs, RunControl], Report]

__all__ = ["RequestUnknown", "RunQueue", "ScheduledLog", "new_request_id"]

DISK_WAIT_S = 0.5
WAITING_MAX = 16
OUTCOMES_MAX = 1000

log = get_logger("lithify.compaction")


class RequestUnknown(InvalidInput):
    """The request id is unknown: it is from before the node was started, or too old."""

    exit_code = OUTCOME_UNKNOWN


def new_request_id() -> str:
    """A random id for a request, or for a group of them, such as the partitions of a topic."""
    return secrets.token_hex(8)


class ScheduledLog(Protocol):
    """The interface of a log to the queue."""

    @property
    def runs(self) -> LogRuns:
        """The runs of this log."""

    @property
    def name(self) -> str:
        """Unique among the logs of its kind."""

    @property
    def device(self) -> str:
        """The device of its directory."""

    def began_ms(self) -> int | None:
        """Start of the last run; None: a periodic run is due at once."""

    def observe(self) -> Observation:
        """The input of the triggers; the queue itself adds `unfinished`."""

    def run(self, trigger: Trigger, jobs: Jobs, control: RunControl) -> Report:
        """Execute a run for a trigger. The disk is already taken."""

    def failed(self, error: LithifyError) -> None:
        """Handle a failed run."""


@dataclass(frozen=True, slots=True)
class _Request:
    """A requested run."""

    log: ScheduledLog
    run: Run
    request_id: str
    control: RunControl


@dataclass(slots=True)
class _Member:
    """A log known to the queue."""

    log: ScheduledLog
    disk: str
    requests: list[_Request] = field(default_factory=list)
    observed: bool = False
    unfinished: bool | None = None
    """Was a run killed? None: not checked yet."""


class _Disk:
    """The thread of one disk, and its current run."""

    def __init__(self, device: str) -> None:
        self.device = device
        self.running: _Request | None = None
        self.waits_for = ""
        """The owner of the disk, if it is another process."""
        self.thread: threading.Thread | None = None


class RunQueue:
    """Schedules and executes the runs of all logs; see the module."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.jobs: Jobs = LocalJobs()
        """Executes the jobs of runs that start from now on."""
        self._schedule = Schedule()
        self._members: dict[str, _Member] = {}
        self._disks: dict[str, _Disk] = {}
        self._changed = threading.Condition()
        self._closed = False
        self._outcomes: dict[tuple[str, str], CompactionStatus] = {}
        """By request id and log key; oldest first."""

    # --- requests ---------------------------------------------------------------------------

    def request(
        self,
        scheduled: ScheduledLog,
        run: Run,
        *,
        request_id: str | None = None,
        waits: bool = True,
    ) -> str:
        """Queue a run and return the request id, or raise `RunRefused`."""
        runs, key = scheduled.runs, _key(scheduled)
        if not waits:
            self.check_free(scheduled)
        request = _Request(scheduled, run, request_id or new_request_id(), RunControl(waits=waits))
        disk = scheduled.device
        with self._changed:
            if self._closed:
                raise RunRefused("node", "it is stopping")
            member = self._join(scheduled, disk)
            waiting = len(member.requests)
            if waiting >= WAITING_MAX:
                raise RunRefused(runs.kind, f"{waiting} runs on {runs.name} are waiting already")
            member.requests.append(request)
            self._schedule.request(key, self.clock.now_ms())
            self._wake(member.disk)
        return request.request_id

    def check_free(self, scheduled: ScheduledLog) -> None:
        """Raise `RunRefused` if a run would have to wait."""
        runs = scheduled.runs
        if self.is_busy(scheduled):
            raise RunRefused(runs.kind, f"a run on {runs.name} is in progress or waiting")
        with self._changed:
            disk = self._disks.get(scheduled.device)
            running = None if disk is None else disk.running
        if running is not None:
            raise _disk_in_use(running)
        runs.take_disk().release()

    def observe(
        self, kind: str, logs: Iterable[ScheduledLog], unchanged: Iterable[str] = ()
    ) -> list[ScheduledLog]:
        """Update the observations of all logs of a kind; those that are running are returned.

        `unchanged` are the names of logs of which an earlier observation is true. May read files.
        Logs of that kind that are in neither are removed.
        """
        seen, running = {f"{kind} {name}" for name in unchanged}, []
        for each in logs:
            seen.add(_key(each))
            try:
                if not self._observe(each):
                    running.append(each)
            except LogClosed:
                continue
            except (LithifyError, OSError) as error:
                # One that cannot be read must not keep the others from being compacted.
                log.warning("triggers cannot be evaluated", log=each.name, why=str(error))
        with self._changed:
            self._remove_missing(kind, seen)
            now_ms = self.clock.now_ms()
            for device in {member.disk for member in self._members.values()}:
                if self._schedule.due(device, now_ms) is not None:
                    self._wake(device)
        return running

    def _observe(self, each: ScheduledLog) -> bool:
        """Update the observation of one log, unless it is running."""
        key = _key(each)
        with self._changed:
            if self._is_running(key):
                return False
            member = self._members.get(key)
            if member is not None and member.log.runs is not each.runs:
                member.log, member.unfinished = each, None
            observed = member is not None and member.observed
            unfinished = None if member is None else member.unfinished
        observation, device = each.observe(), each.device
        if unfinished is None:
            unfinished = each.runs.unfinished()
        if unfinished:
            observation = replace(observation, unfinished=True)
        began_ms = None if observed else each.began_ms()
        with self._changed:
            member = self._join(each, device)
            if not observed:
                self._schedule.began(key, began_ms)
            member.observed, member.unfinished = True, unfinished
            self._schedule.observe(key, observation, self.clock.now_ms())
        return True

    def status(self, scheduled: ScheduledLog, request_id: str | None = None) -> CompactionStatus:
        """The status of a log, or of a request; raises `RequestUnknown`."""
        runs, key = scheduled.runs, _key(scheduled)
        with self._changed:
            found = self._outcomes.get((request_id or "", key))
            if found is not None:
                return found
            member = self._members.get(key)
            disk = None if member is None else self._disks.get(member.disk)
            running = None if disk is None else disk.running
            own = running if running is not None and _key(running.log) == key else None
            waiting = [] if member is None else list(member.requests)
            is_due = self._schedule.due_trigger(key, self.clock.now_ms()) is not None
            waits_for = _waits_for(disk)
        if request_id is not None and request_id not in (
            each.request_id for each in (*waiting, *([] if own is None else [own]))
        ):
            raise RequestUnknown(
                f"request {request_id} for a run on {runs.name} is unknown: it is from before the "
                f"node was started, or more than {OUTCOMES_MAX} requests old"
            )
        if own is not None and request_id in (None, own.request_id):
            if own.control.phase != WAITING:
                status = runs.status()
                return (
                    status if status.state is CompactionState.RUNNING else _in_progress(own.control)
                )
            return _waiting(own.control.waits_for)
        if request_id is None and (runs.running or not (waiting or is_due)):
            return runs.status()
        return _waiting(waits_for)

    def is_busy(self, scheduled: ScheduledLog) -> bool:
        """Is a run waiting or in progress?"""
        key = _key(scheduled)
        with self._changed:
            is_waiting = self._is_running(key) or (
                self._schedule.due_trigger(key, self.clock.now_ms()) is not None
            )
        return is_waiting or scheduled.runs.running

    def cancel(self, scheduled: ScheduledLog) -> bool:
        """Cancel the current run and all waiting ones; False if there are none."""
        key, cancelled = _key(scheduled), scheduled.runs.running
        with self._changed:
            now_ms = self.clock.now_ms()
            member, running = self._members.get(key), self._running(key)
            is_due = self._schedule.due_trigger(key, now_ms) is not None
            if member is not None and (running is not None or is_due):
                cancelled = True
                for request in member.requests:
                    self._end(request, _failed("the run was cancelled before it began"))
                member.requests.clear()
                self._schedule.withdraw(key, now_ms)
            if running is not None:
                running.control.cancel()
        scheduled.runs.cancel()
        return cancelled

    def close(self) -> None:
        """Stop the current runs, drop the waiting ones, and wait for the threads to exit."""
        with self._changed:
            self._closed = True
            for disk in self._disks.values():
                if disk.running is not None:
                    disk.running.log.runs.interrupt(disk.running.control)
            disks = list(self._disks.values())
            self._changed.notify_all()
        for disk in disks:
            if disk.thread is not None:
                disk.thread.join()

    # --- under the lock ---------------------------------------------------------------------

    def _join(self, scheduled: ScheduledLog, disk: str) -> _Member:
        """The member of a log, which may be new or reopened."""
        key = _key(scheduled)
        member = self._members.get(key)
        if member is None:
            member = self._members[key] = _Member(scheduled, disk)
            self._schedule.add(key, disk, self.clock.now_ms())
        return member

    def _remove_missing(self, kind: str, seen: set[str]) -> None:
        missing = [
            key
            for key, member in self._members.items()
            if key not in seen
            and member.log.runs.kind == kind
            and not member.requests
            and not self._is_running(key)
        ]
        for key in missing:
            self._schedule.remove(key)
            del self._members[key]

    def _wake(self, device: str) -> None:
        disk = self._disks.setdefault(device, _Disk(device))
        if disk.thread is None and not self._closed:
            name = f"lithify-compaction-{device}"
            disk.thread = threading.Thread(target=self._work, args=(disk,), name=name)
            disk.thread.start()
        self._changed.notify_all()

    def _running(self, key: str) -> _Request | None:
        for disk in self._disks.values():
            if disk.running is not None and _key(disk.running.log) == key:
                return disk.running
        return None

    def _is_running(self, key: str) -> bool:
        return self._running(key) is not None

    def _next(self, disk: _Disk) -> CompactNow | None:
        return self._schedule.due(disk.device, self.clock.now_ms())

    def _end(self, request: _Request, outcome: CompactionStatus) -> None:
        """Store the outcome of a request."""
        self._outcomes[request.request_id, _key(request.log)] = outcome
        while len(self._outcomes) > OUTCOMES_MAX:
            del self._outcomes[next(iter(self._outcomes))]

    # --- the threads ------------------------------------------------------------------------

    def _work(self, disk: _Disk) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closed or self._next(disk) is not None)
                work = self._next(disk)
                if self._closed:
                    return
                if work is None:
                    continue
                runs = self._members[work.name].log.runs
            turn: AbstractContextManager[object] = nullcontext()
            try:
                turn = runs.take_disk()
            except RunRefused as refused:
                self._wait_for_disk(disk, work, refused)
                continue
            except (LithifyError, OSError) as error:
                # The run hits the same error and reports it.
                log.warning("a disk cannot be locked", log=runs.name, reason=str(error))
            with turn:
                self._carry_out(disk, work, has_disk=not isinstance(turn, nullcontext))

    def _wait_for_disk(self, disk: _Disk, work: CompactNow, refused: RunRefused) -> None:
        with self._changed:
            disk.waits_for = refused.waits_for
            member = self._members.get(work.name)
            if member is not None and work.trigger is Trigger.ADMIN and member.requests:
                request = member.requests[0]
                request.control.waits_for = refused.waits_for
                if not request.control.waits:
                    self._schedule.withdraw_first(work.name)
                    self._end(member.requests.pop(0), _failed(str(refused)))
                    return
            if not self._closed:
                self._changed.wait(DISK_WAIT_S)

    def _carry_out(self, disk: _Disk, work: CompactNow, *, has_disk: bool) -> None:
        """Execute the chosen work if it still comes first: requests may have come or gone."""
        with self._changed:
            disk.waits_for = ""
            now = self._next(disk)
            if self._closed or now is None or (now.name, now.trigger) != (work.name, work.trigger):
                return
            member, key = self._members[work.name], work.name
            if work.trigger is Trigger.ADMIN:
                request = member.requests.pop(0)
            else:
                request = _triggered(member.log, work.trigger)
            request.control.has_disk = has_disk
            self._schedule.started(work, self.clock.now_ms())
            disk.running = request
        result, outcome = self._run(request)
        with self._changed:
            self._schedule.finished(key, self.clock.now_ms(), result)
            if result is not Result.DONE or member.unfinished:
                # Any run finishes an earlier one first: check again.
                member.unfinished = None
            disk.running = None
            self._end(request, outcome)
            self._changed.notify_all()

    def _run(self, request: _Request) -> tuple[Result, CompactionStatus]:
        runs = request.log.runs
        what = {runs.kind: request.log.name}
        try:
            report = request.run(self.jobs, request.control)
        except (LogClosed, RunSuspended) as error:
            return Result.INTERRUPTED, _failed(str(error))
        except RunCancelled as error:
            return Result.CANCELLED, _failed(str(error))
        except LithifyError as error:
            refused = isinstance(error, RunRefused)
            text = "compaction is refused" if refused else "compaction failed"
            log.warning(text, **what, reason=str(error))
            request.log.failed(error)
            return Result.FAILED, _failed(str(error))
        except Exception as error:
            log.exception("compaction failed", **what)
            return Result.FAILED, _failed(repr(error))
        result = Result.NOTHING if report.result == "nothing to do" else Result.DONE
        return result, CompactionStatus(CompactionState.SUCCESS, report=report)


def _key(scheduled: ScheduledLog) -> str:
    return f"{scheduled.runs.kind} {scheduled.name}"


def _triggered(scheduled: ScheduledLog, trigger: Trigger) -> _Request:
    def run(jobs: Jobs, control: RunControl) -> Report:
        return scheduled.run(trigger, jobs, control)

    return _Request(scheduled, run, new_request_id(), RunControl())


def _disk_in_use(running: _Request) -> RunRefused:
    return disk_in_use(disk_owner(running.log.runs.name))


def _waits_for(disk: _Disk | None) -> str:
    if disk is None:
        return ""
    return disk.waits_for if disk.running is None else _disk_in_use(disk.running).waits_for


def _waiting(waits_for: str) -> CompactionStatus:
    return CompactionStatus(CompactionState.RUNNING, phase=WAITING, waits_for=waits_for)


def _in_progress(control: RunControl) -> CompactionStatus:
    return CompactionStatus(
        CompactionState.RUNNING, phase=control.phase, done=control.done, total=control.total
    )


def _failed(error: str) -> CompactionStatus:
    return CompactionStatus(CompactionState.ERROR, error)
