"""The queue: what is compacted next, by one thread per disk, for all logs of a process.

    queue = RunQueue(clock)
    queue.look(logs)                              # once a second: what the triggers say
    request_id = queue.request(log, run)          # a person asks
    queue.status(log, request_id); queue.cancel(log)
    queue.close()

Topics, blob stores and Raft groups have the same queue; a store brings a `ScheduledLog` for each of
its logs: what it observes, and how a run is done.

1. `schedule.py` decides: persons first, then unfinished runs, lag, thresholds, periodic visits; no
   log starves; a log that failed or had nothing to do is left alone for a while.
2. There is one thread per disk, begun with the first run there. Two runs on one disk would only be
   slower together, runs on several disks do not meet.
3. The thread takes the disk before a run begins (`LogRuns.take_disk`). While another process
   compacts there the requests wait, and their status says for whom. A new request may overtake
   meanwhile.
4. A request can be cancelled while it waits and while it runs: it has one `RunControl` from the
   beginning to the end.
5. A person's request is never dropped: each is a run of its own. Up to `WAITING_MAX` of them wait
   for one log. One that does not want to wait is refused if it would have to.
6. The outcomes of the last `OUTCOMES_MAX` requests are kept as long as the process lives.

All methods may be called from any thread.
"""

from __future__ import annotations

import os
import secrets
import threading
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol

from lithify.compaction.reports.status import CompactionState, CompactionStatus
from lithify.compaction.run.control import WAITING, RunControl
from lithify.compaction.scheduling.schedule import CompactNow, Result, Schedule, Trigger
from lithify.compaction.tasks.jobs import LocalJobs
from lithify.errors import (
    OUTCOME_UNKNOWN,
    InvalidInput,
    LithifyError,
    LogClosed,
    RunCancelled,
    RunRefused,
    RunSuspended,
)
from lithify.logger import get_logger

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from contextlib import AbstractContextManager

    from lithify.clock import Clock
    from lithify.compaction.reports.report import Report
    from lithify.compaction.run.log_runs import LogRuns
    from lithify.compaction.scheduling.schedule import Observation
    from lithify.compaction.tasks.jobs import Jobs

    Run = Callable[[Jobs, RunControl], Report]

__all__ = ["RequestUnknown", "RunQueue", "ScheduledLog", "new_request_id"]

DISK_WAIT_S = 0.5
WAITING_MAX = 16
OUTCOMES_MAX = 1000

log = get_logger("lithify.compaction")


class RequestUnknown(InvalidInput):
    """No request of this id is known: it was made before the node was started, or long ago."""

    exit_code = OUTCOME_UNKNOWN


def new_request_id() -> str:
    """For a request, or for those that belong together, as of the partitions of a topic."""
    return secrets.token_hex(8)


class ScheduledLog(Protocol):
    """What the queue asks a store about one of its logs."""

    @property
    def runs(self) -> LogRuns:
        """The runs of this log."""

    @property
    def name(self) -> str:
        """Which no other log of its kind has."""

    @property
    def device(self) -> str:
        """The disk that it is on."""

    def began_ms(self) -> int | None:
        """When its last run began; None: its first visit is due at once."""

    def observe(self) -> Observation:
        """What calls for a run; `unfinished` is the queue's to find out."""

    def run(self, trigger: Trigger, jobs: Jobs, control: RunControl) -> Report:
        """Do the run that a trigger has called for. The disk is taken."""

    def failed(self, error: LithifyError) -> None:
        """A run has failed."""


@dataclass(frozen=True, slots=True)
class _Request:
    """A run that is wanted."""

    log: ScheduledLog
    run: Run
    request_id: str
    control: RunControl


@dataclass(slots=True)
class _Member:
    """A log that the queue looks after."""

    log: ScheduledLog
    disk: str
    requests: list[_Request] = field(default_factory=list)
    observed: bool = False
    unfinished: bool | None = None
    """Was a run killed? None: nobody has looked."""


class _Disk:
    """The thread of one disk, and what runs there."""

    def __init__(self, device: str) -> None:
        self.device = device
        self.running: _Request | None = None
        self.waits_for = ""
        """Who has the disk, if that is another process."""
        self.thread: threading.Thread | None = None


class RunQueue:
    """See the module."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.jobs: Jobs = LocalJobs()
        """Who does the work of runs that begin from now on."""
        self._schedule = Schedule()
        self._members: dict[str, _Member] = {}
        self._disks: dict[str, _Disk] = {}
        self._changed = threading.Condition()
        self._closed = False
        self._outcomes: dict[tuple[str, str], CompactionStatus] = {}
        """By id of the request and key of the log; the oldest first."""

    # --- asking -----------------------------------------------------------------------------

    def request(
        self,
        asked: ScheduledLog,
        run: Run,
        *,
        request_id: str | None = None,
        waits: bool = True,
    ) -> str:
        """Have a log compacted as soon as its turn comes, or raise `RunRefused`; the id."""
        runs, key = asked.runs, _key(asked)
        if not waits:
            self._check_free(asked)
        request = _Request(asked, run, request_id or new_request_id(), RunControl(waits=waits))
        disk = asked.device
        with self._changed:
            if self._closed:
                raise RunRefused("node", "it is stopping")
            member = self._join(asked, disk)
            waiting = len(member.requests)
            if waiting >= WAITING_MAX:
                raise RunRefused(runs.kind, f"{waiting} runs on {runs.name} wait already")
            member.requests.append(request)
            self._schedule.request(key, self.clock.now_ms())
            self._wake(member.disk)
        return request.request_id

    def _check_free(self, asked: ScheduledLog) -> None:
        """Raise `RunRefused` if a run would have to wait."""
        runs = asked.runs
        if self.is_busy(asked):
            raise RunRefused(runs.kind, f"a run on {runs.name} is going on or waits")
        with self._changed:
            disk = self._disks.get(asked.device)
            running = None if disk is None else disk.running
        if running is not None:
            raise RunRefused("disk", _holder(running))
        runs.take_disk().release()

    def observe(self, kind: str, logs: Iterable[ScheduledLog]) -> None:
        """Take in what calls for runs on the logs of a kind, which are all that there are.

        May read files. Logs of that kind that are not given are forgotten.
        """
        seen = set()
        for each in logs:
            seen.add(_key(each))
            try:
                self._observe(each)
            except LogClosed:
                continue
            except LithifyError as error:
                log.warning("need of compaction is unknown", log=each.name, why=str(error))
        with self._changed:
            self._forget(kind, seen)
            now_ms = self.clock.now_ms()
            due = {m.disk for key, m in self._members.items() if self._schedule.calls(key, now_ms)}
            for device in due:
                self._wake(device)

    def _observe(self, each: ScheduledLog) -> None:
        """Take in what calls for runs on one log."""
        key = _key(each)
        with self._changed:
            if self._is_running(key):
                return
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

    def status(self, asked: ScheduledLog, request_id: str | None = None) -> CompactionStatus:
        """That of a log, or of a request; raises `RequestUnknown`."""
        runs, key = asked.runs, _key(asked)
        with self._changed:
            found = self._outcomes.get((request_id or "", key))
            if found is not None:
                return found
            member = self._members.get(key)
            disk = None if member is None else self._disks.get(member.disk)
            running = None if disk is None else disk.running
            own = running if running is not None and _key(running.log) == key else None
            wanted = [] if member is None else list(member.requests)
            calls = self._schedule.calls(key, self.clock.now_ms()) is not None
            waits_for = _waits_for(disk)
        if request_id is not None and request_id not in (
            each.request_id for each in (*wanted, *([] if own is None else [own]))
        ):
            raise RequestUnknown(
                f"nothing is known of request {request_id} for a run on {runs.name}: it was made "
                f"before the node was started, or more than {OUTCOMES_MAX} requests ago"
            )
        if own is not None and request_id in (None, own.request_id):
            if own.control.phase != WAITING:
                status = runs.status()
                return status if status.state is CompactionState.RUNNING else _going_on(own.control)
            return _waiting(own.control.waits_for)
        if request_id is None and (runs.running or not (wanted or calls)):
            return runs.status()
        return _waiting(waits_for)

    def is_busy(self, asked: ScheduledLog) -> bool:
        """Does a run wait, or go on?"""
        key = _key(asked)
        with self._changed:
            wanted = self._is_running(key) or (
                self._schedule.calls(key, self.clock.now_ms()) is not None
            )
        return wanted or asked.runs.running

    def cancel(self, asked: ScheduledLog) -> bool:
        """Stop the run, and forget what waits; False if there is neither."""
        key, found = _key(asked), asked.runs.running
        with self._changed:
            now_ms = self.clock.now_ms()
            member, running = self._members.get(key), self._running(key)
            calls = self._schedule.calls(key, now_ms) is not None
            if member is not None and (running is not None or calls):
                found = True
                for request in member.requests:
                    self._end(request, _failed("the run was cancelled before it began"))
                member.requests.clear()
                self._schedule.withdraw(key, now_ms)
            if running is not None:
                running.control.cancel()
        asked.runs.cancel()
        return found

    def close(self) -> None:
        """Stop the runs that are going on, forget the others, and wait until nothing goes on."""
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

    def _join(self, asked: ScheduledLog, disk: str) -> _Member:
        """The member of a log, which may be new, or opened again."""
        key = _key(asked)
        member = self._members.get(key)
        if member is None:
            member = self._members[key] = _Member(asked, disk)
            self._schedule.add(key, disk, self.clock.now_ms())
        return member

    def _forget(self, kind: str, seen: set[str]) -> None:
        gone = [
            key
            for key, member in self._members.items()
            if member.log.runs.kind == kind
            and key not in seen
            and not member.requests
            and not self._is_running(key)
        ]
        for key in gone:
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
        work = self._schedule.next(disk.device, self.clock.now_ms())
        return work if isinstance(work, CompactNow) else None

    def _end(self, request: _Request, outcome: CompactionStatus) -> None:
        """Remember the outcome of a request."""
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
                # The run finds the same, and reports it.
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
        """Do what was chosen, if it still comes first: requests may have come or gone."""
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
            if result is not Result.DONE or work.trigger is Trigger.UNFINISHED:
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


def _key(asked: ScheduledLog) -> str:
    return f"{asked.runs.kind} {asked.name}"


def _triggered(asked: ScheduledLog, trigger: Trigger) -> _Request:
    def run(jobs: Jobs, control: RunControl) -> Report:
        return asked.run(trigger, jobs, control)

    return _Request(asked, run, new_request_id(), RunControl())


def _holder(running: _Request) -> str:
    return f"pid {os.getpid()} compacts {running.log.runs.name}"


def _waits_for(disk: _Disk | None) -> str:
    if disk is None:
        return ""
    return disk.waits_for if disk.running is None else f"disk: {_holder(disk.running)}"


def _waiting(waits_for: str) -> CompactionStatus:
    return CompactionStatus(CompactionState.RUNNING, phase=WAITING, waits_for=waits_for)


def _going_on(control: RunControl) -> CompactionStatus:
    return CompactionStatus(
        CompactionState.RUNNING, phase=control.phase, done=control.done, total=control.total
    )


def _failed(error: str) -> CompactionStatus:
    return CompactionStatus(CompactionState.ERROR, error)
