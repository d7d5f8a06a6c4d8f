"""Runs that wait for their turn: a queue and a thread a disk, for a node's logs of one kind.

    queue.add(Request(compaction, "orders", disk, Trigger.ADMIN, run))
    queue.cancel(compaction)
    queue.close()

1. A request waits in the queue of its disk; those of persons come before those of triggers.
2. A thread a disk, begun with its first request, takes them in turn: two runs on one disk would
   only be slower together, runs on several disks do not meet.
3. While another process compacts on the same disk the request goes on waiting.
4. A request can be cancelled while it waits, and its run from the moment it is taken out of the
   queue: each step of the run asks.

What is compacted is told by identity. All methods may be called from any thread.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from lithify.compaction.schedule import Trigger
from lithify.errors import RunCancelled, RunRefused
from lithify.logger import get_logger

if TYPE_CHECKING:
    from collections.abc import Callable

    from lithify.compaction.jobs import Progress

__all__ = ["Compactable", "Request", "RunQueue"]

DISK_WAIT_S = 1.0
JOIN_S = 0.1

log = get_logger("lithify.compaction")


class Compactable(Protocol):
    """What a run is about."""

    @property
    def running(self) -> bool:
        """Is a run going on, by whomever it was begun?"""

    def cancel(self) -> None:
        """Ask the run that is going on to stop."""

    def suspend(self) -> None:
        """Ask it to stop because the process ends."""


@dataclass(frozen=True, slots=True)
class Request:
    """A run that is wanted."""

    what: Compactable
    name: str
    disk: str
    trigger: str
    run: Callable[[Progress], None]
    """Does it; is handed what each of its steps has to call. Handles what it expects to fail but
    `RunRefused` for the disk, after which it is called again."""


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

    def add(self, request: Request) -> None:
        """Have it run as soon as its turn comes, or raise `RunRefused`."""
        with self._changed:
            if self._closed:
                raise RunRefused("node", "it is stopping")
            if self.is_busy(request.what):
                raise RunRefused(self._limit, f"a run on {request.name} is going on")
            disk = self._disks.setdefault(request.disk, _Disk())
            if request.trigger == Trigger.ADMIN:
                persons = sum(each.trigger == Trigger.ADMIN for each in disk.waiting)
                disk.waiting.insert(persons, request)
            else:
                disk.waiting.append(request)
            if disk.thread is None:
                name = f"lithify-compaction-{request.disk}"
                disk.thread = threading.Thread(target=self._work, args=(disk,), name=name)
                disk.thread.start()
            self._changed.notify_all()

    def is_busy(self, what: Compactable) -> bool:
        """Does a run wait, or go on?"""
        with self._changed:
            wanted = any(
                _is_in(disk.waiting, what) or _is(disk.running, what)
                for disk in self._disks.values()
            )
        return wanted or what.running

    def waits(self, what: Compactable) -> bool:
        """Is a run wanted that has not begun?"""
        with self._changed:
            return any(
                _is_in(disk.waiting, what) or (_is(disk.running, what) and not what.running)
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
                request.run(disk.go_on)
            except RunRefused as error:
                if error.limit == "disk":
                    self._wait_for_disk(disk, request)
                else:
                    log.exception("compaction failed", log=request.name)
            except Exception:
                log.exception("compaction failed", log=request.name)

    def _wait_for_disk(self, disk: _Disk, request: Request) -> None:
        with self._changed:
            if not (self._closed or disk.cancelled):
                disk.waiting.append(request)
                self._changed.wait_for(lambda: self._closed, DISK_WAIT_S)


def _is(request: Request | None, what: Compactable) -> bool:
    return request is not None and request.what is what


def _is_in(requests: list[Request], what: Compactable) -> bool:
    return any(each.what is what for each in requests)
