"""Runs that wait for their turn: a queue and a thread a disk, for a node's logs of one kind.

    request_id = queue.add(Request(compaction, "orders", disk, Trigger.ADMIN, run))
    queue.status(request_id, compaction)
    queue.cancel(compaction)
    queue.close()

1. A request waits in the queue of its disk; those of persons come before those of triggers.
2. A thread a disk, begun with its first request, takes them in turn: two runs on one disk would
   only be slower together, runs on several disks do not meet.
3. While another process compacts on the same disk the request goes on waiting.
4. A request can be cancelled while it waits, and its run from the moment it is taken out of the
   queue: each step of the run asks.
5. A person's request is never dropped: while the log is busy it waits, and is a run of its own. Up
   to `WAITING_MAX` of them wait for one log. A trigger's request is refused while the log is busy:
   the trigger asks again.
6. What came of the last `OUTCOMES_MAX` requests can be asked by their ids, as long as the process
   lives.

What is compacted is told by identity. All methods may be called from any thread.
"""

from __future__ import annotations

import secrets
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from lithify.compaction.record import WAITING, CompactionState, CompactionStatus
from lithify.compaction.schedule import Trigger
from lithify.errors import OUTCOME_UNKNOWN, InvalidInput, LithifyError, RunCancelled, RunRefused
from lithify.logger import get_logger

if TYPE_CHECKING:
    from collections.abc import Callable

    from lithify.compaction.jobs import Progress
    from lithify.compaction.report import Report

__all__ = ["Compactable", "Request", "RequestUnknown", "RunQueue", "new_request_id"]

DISK_WAIT_S = 1.0
JOIN_S = 0.1
WAITING_MAX = 16
OUTCOMES_MAX = 1000

log = get_logger("lithify.compaction")


class RequestUnknown(InvalidInput):
    """No request of this id is known: it was made before the node was started, or long ago."""

    exit_code = OUTCOME_UNKNOWN


def new_request_id() -> str:
    """For a request, or for those that belong together, as of the partitions of a topic."""
    return secrets.token_hex(8)


class Compactable(Protocol):
    """What a run is about."""

    @property
    def running(self) -> bool:
        """Is a run going on, by whomever it was begun?"""

    def cancel(self) -> None:
        """Ask the run that is going on to stop."""

    def suspend(self) -> None:
        """Ask it to stop because the process ends."""

    def status(self) -> CompactionStatus:
        """How the last run went, or how far this one is."""


@dataclass(frozen=True, slots=True)
class Request:
    """A run that is wanted."""

    what: Compactable
    name: str
    disk: str
    trigger: str
    run: Callable[[Progress], Report]
    """Does it; is handed what each of its steps has to call. Logs what it expects to fail. After
    `RunRefused` for the disk it is called again."""
    request_id: str = field(default_factory=new_request_id)


class _Disk:
    """The queue of one disk, and what runs there."""

    def __init__(self) -> None:
        self.waiting: list[Request] = []
        self.running: Request | None = None
        self.cancelled = False
        """Is the run of `running` to stop, which may not have begun yet?"""
        self.thread: threading.Thread | None = None

    def go_on(self, _phase: str, _done: int, _total: int) -> None:
        if self.cancelled:
            raise RunCancelled("the run was cancelled")


class RunQueue:
    """See the module."""

    def __init__(self, *, limit: str) -> None:
        """`limit` is what a request that is refused waits for: the word for such a log."""
        self._limit = limit
        self._disks: dict[str, _Disk] = {}
        self._changed = threading.Condition()
        self._closed = False
        self._outcomes: dict[tuple[str, str], CompactionStatus] = {}
        """By id and name of a request; the oldest first."""

    def add(self, request: Request) -> str:
        """Have it run as soon as its turn comes, or raise `RunRefused`; its id."""
        by_person = request.trigger == Trigger.ADMIN
        with self._changed:
            if self._closed:
                raise RunRefused("node", "it is stopping")
            if not by_person and self.is_busy(request.what):
                raise RunRefused(self._limit, f"a run on {request.name} is going on")
            disk = self._disks.setdefault(request.disk, _Disk())
            if by_person:
                waiting = sum(each.what is request.what for each in disk.waiting)
                if waiting >= WAITING_MAX:
                    raise RunRefused(self._limit, f"{waiting} runs on {request.name} wait already")
                persons = sum(each.trigger == Trigger.ADMIN for each in disk.waiting)
                disk.waiting.insert(persons, request)
            else:
                disk.waiting.append(request)
            if disk.thread is None:
                name = f"lithify-compaction-{request.disk}"
                disk.thread = threading.Thread(target=self._work, args=(disk,), name=name)
                disk.thread.start()
            self._changed.notify_all()
        return request.request_id

    def status(self, request_id: str, what: Compactable, name: str) -> CompactionStatus:
        """How a request of this name stands, or what came of it; raises `RequestUnknown`."""
        with self._changed:
            found = self._outcomes.get((request_id, name))
            if found is not None:
                return found
            requests = [
                (each, each is disk.running)
                for disk in self._disks.values()
                for each in (disk.running, *disk.waiting)
                if each is not None and (each.request_id, each.name) == (request_id, name)
            ]
        if not requests:
            raise RequestUnknown(
                f"nothing is known of request {request_id} for a run on {name}: it was made before "
                f"the node was started, or more than {OUTCOMES_MAX} requests ago"
            )
        if requests[0][1] and what.running:
            now = what.status()
            if now.state is CompactionState.RUNNING:
                return now
        return CompactionStatus(CompactionState.RUNNING, phase=WAITING)

    def is_busy(self, what: Compactable) -> bool:
        """Does a run wait, or go on?"""
        with self._changed:
            wanted = any(
                _is_in(disk.waiting, what) or _is(disk.running, what)
                for disk in self._disks.values()
            )
        return wanted or what.running

    def waits(self, what: Compactable) -> bool:
        """Is a run wanted that has not begun, while no other one goes on?"""
        with self._changed:
            return not what.running and any(
                _is_in(disk.waiting, what) or _is(disk.running, what)
                for disk in self._disks.values()
            )

    def cancel(self, what: Compactable) -> bool:
        """Stop the run, or forget the request; False if there is neither."""
        found = False
        with self._changed:
            for disk in self._disks.values():
                taken = _is(disk.running, what)
                found = found or taken or _is_in(disk.waiting, what)
                disk.cancelled = disk.cancelled or taken
                for each in disk.waiting:
                    if each.what is what:
                        self._end(each, _failed("the run was cancelled before it began"))
                disk.waiting = [each for each in disk.waiting if each.what is not what]
            running = what.running
        what.cancel()
        return found or running

    def close(self) -> None:
        """Stop the runs that are going on, forget the others, and wait until nothing goes on."""
        with self._changed:
            self._closed = True
            for disk in self._disks.values():
                disk.waiting.clear()
            disks = list(self._disks.values())
            self._changed.notify_all()
        for disk in disks:
            while disk.thread is not None and disk.thread.is_alive():
                running = disk.running
                if running is not None:
                    running.what.suspend()
                disk.thread.join(JOIN_S)

    # --- the threads ------------------------------------------------------------------------

    def _work(self, disk: _Disk) -> None:
        while True:
            with self._changed:
                disk.running = None
                self._changed.wait_for(lambda: disk.waiting or self._closed)
                if self._closed:
                    return
                request = disk.running = disk.waiting.pop(0)
                disk.cancelled = False
            try:
                report = request.run(disk.go_on)
                outcome = CompactionStatus(CompactionState.SUCCESS, report=report)
            except RunRefused as error:
                if error.limit == "disk":
                    self._wait_for_disk(disk, request)
                    continue
                outcome = _failed(str(error))
            except LithifyError as error:
                outcome = _failed(str(error))
            except Exception as error:
                log.exception("compaction failed", log=request.name)
                outcome = _failed(repr(error))
            with self._changed:
                self._end(request, outcome)

    def _end(self, request: Request, outcome: CompactionStatus) -> None:
        """Remember what came of a request."""
        self._outcomes[request.request_id, request.name] = outcome
        while len(self._outcomes) > OUTCOMES_MAX:
            del self._outcomes[next(iter(self._outcomes))]

    def _wait_for_disk(self, disk: _Disk, request: Request) -> None:
        with self._changed:
            if disk.cancelled:
                self._end(request, _failed("the run was cancelled before it began"))
            elif not self._closed:
                disk.waiting.append(request)
                self._changed.wait_for(lambda: self._closed, DISK_WAIT_S)


def _failed(error: str) -> CompactionStatus:
    return CompactionStatus(CompactionState.ERROR, error)


def _is(request: Request | None, what: Compactable) -> bool:
    return request is not None and request.what is what


def _is_in(requests: list[Request], what: Compactable) -> bool:
    return any(each.what is what for each in requests)
