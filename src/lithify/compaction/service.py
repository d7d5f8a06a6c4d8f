"""Compacts many logs without being asked: the scheduler's decisions carried out.

    service = CompactionService(ScheduleSettings(), clock=clock)
    service.add("orders", compactor, disk="sda")
    service.start()                  # a thread a disk
    service.request("orders")        # somebody wants it now
    service.stop()

A disk's thread looks at its logs (what is new, how old, is a run unfinished), asks the scheduler,
runs what it says, and sleeps until the next thing is due or somebody asks. After each run retired
files are reclaimed, here and not in the run. A log whose run fails is left alone for a while and
tried again by itself; the others go on.

`work(disk)` does one round in the calling thread: what the threads do, for tests and for owners
that bring their own.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lithify.clock import SystemClock
from lithify.compaction.schedule import Scheduler, Wait
from lithify.errors import LithifyError

if TYPE_CHECKING:
    from lithify.clock import Clock
    from lithify.compaction.run import Compactor
    from lithify.compaction.schedule import LogStatus, ScheduleSettings

__all__ = ["CompactionService"]

LOOK_S_MAX = 30.0
"""Logs are looked at this often even if nothing is due: what is new in them comes unannounced."""


@dataclass(frozen=True, slots=True)
class _Member:
    compactor: Compactor
    disk: str


class CompactionService:
    """Looks after logs; all methods may be called from any thread."""

    def __init__(self, settings: ScheduleSettings, *, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._scheduler = Scheduler(settings)
        self._members: dict[str, _Member] = {}
        self._changed = threading.Condition()
        self._threads: dict[str, threading.Thread] = {}
        self._started = False
        self._stopping = False

    def add(self, name: str, compactor: Compactor, disk: str) -> None:
        """Begin to look after a log."""
        with self._changed:
            self._scheduler.add(name, disk, self._clock.now_ms())
            self._members[name] = _Member(compactor, disk)
            if self._started:
                self._start_thread(disk)
            self._changed.notify_all()

    def remove(self, name: str) -> None:
        """Forget a log; refused while it is being compacted."""
        with self._changed:
            self._scheduler.remove(name)
            del self._members[name]

    def request(self, name: str) -> None:
        """Compact this log as soon as its disk is free, also if it is quarantined."""
        with self._changed:
            self._scheduler.request(name, self._clock.now_ms())
            self._changed.notify_all()

    def status(self) -> list[LogStatus]:
        """What each log is doing, by name."""
        with self._changed:
            return self._scheduler.status(self._clock.now_ms())

    # --- working ----------------------------------------------------------------------------

    def work(self, disk: str) -> Wait | None:
        """One round on a disk: run what is due first and return None, or say what is waited for."""
        with self._changed:
            members = {n: m for n, m in self._members.items() if m.disk == disk}
        facts = {name: member.compactor.observe() for name, member in members.items()}
        with self._changed:
            now_ms = self._clock.now_ms()
            for name, observation in facts.items():
                if name in self._members:
                    self._scheduler.observe(name, observation, now_ms)
            work = self._scheduler.next(disk, now_ms)
            if isinstance(work, Wait):
                return work
            self._scheduler.started(work, now_ms)
            compactor = self._members[work.name].compactor
        error: str | None = None
        try:
            compactor.run(work.trigger)
            compactor.reclaim()
        except LithifyError as problem:
            error = str(problem)
        with self._changed:
            self._scheduler.finished(work.name, self._clock.now_ms(), error)
        return None

    def start(self) -> None:
        """Work in the background, a thread for each disk."""
        with self._changed:
            self._started = True
            for disk in {member.disk for member in self._members.values()}:
                self._start_thread(disk)

    def _start_thread(self, disk: str) -> None:
        if disk not in self._threads:
            thread = threading.Thread(
                target=self._loop, args=(disk,), name=f"lithify-compaction-{disk}", daemon=True
            )
            self._threads[disk] = thread
            thread.start()

    def _loop(self, disk: str) -> None:
        while True:
            wait = self.work(disk)
            with self._changed:
                if self._stopping:
                    return
                if wait is None:
                    continue
                left_s = LOOK_S_MAX
                if wait.until_ms is not None:
                    left_s = min(left_s, (wait.until_ms - self._clock.now_ms()) / 1000)
                self._changed.wait(max(left_s, 0.001))

    def stop(self) -> None:
        """Cancel the runs that are going on and end; the logs are as they were or as published."""
        with self._changed:
            self._stopping = True
            members = list(self._members.values())
            self._changed.notify_all()
        for member in members:
            member.compactor.cancel()
        for thread in self._threads.values():
            thread.join()
