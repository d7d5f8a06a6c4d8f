"""Threads that wait for the same fsync: one makes it, the others wait for it and nothing else."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from lithify.log.group_commit import Pending, Tick


class SlowLog:
    """A log whose fsync ends when the test says so, and whose first may be interrupted."""

    def __init__(self, *, interrupted: bool = False) -> None:
        self.interrupted = interrupted
        self.fsyncs = 0
        self.began = threading.Event()
        self.may_end = threading.Event()

    def sync_tick(self, tick: Tick) -> None:
        self.fsyncs += 1
        self.began.set()
        self.may_end.wait()
        if self.interrupted:
            self.interrupted = False
            raise KeyboardInterrupt
        tick.complete()


def test_only_the_first_thread_runs_the_fsync() -> None:
    # The log lets one at a time in. A second thread would queue there with the threads of the
    # next tick, and be acknowledged an fsync late.
    log, tick = SlowLog(), Tick()
    with ThreadPoolExecutor(4) as pool:
        first = pool.submit(Pending(0, tick, log).result)
        log.began.wait()
        others = [pool.submit(Pending(n, tick, log).result) for n in (1, 2, 3)]
        log.may_end.set()
        assert first.result() == 0
        assert [other.result() for other in others] == [1, 2, 3]
    assert log.fsyncs == 1


def test_another_thread_takes_over_from_one_that_was_interrupted() -> None:
    log, tick = SlowLog(interrupted=True), Tick()
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(Pending(0, tick, log).result)
        log.began.wait()
        second = pool.submit(Pending(1, tick, log).result)
        log.may_end.set()
        with pytest.raises(KeyboardInterrupt):
            first.result()
        assert second.result() == 1
    assert log.fsyncs == 2
