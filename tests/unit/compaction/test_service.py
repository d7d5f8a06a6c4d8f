"""The service: what the scheduler decides is done, and a log that fails is tried again."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from lithify.clock import ManualClock
from lithify.compaction.rule import GivenLiveSet, Judgement, Question
from lithify.compaction.schedule import ScheduleSettings, State, Wait
from lithify.compaction.service import CompactionService
from lithify.errors import InvalidInput, PlanStale
from lithify.fs import MemoryFileSystem
from lithify.liveset import LiveSet
from tests.patience import PROCESS_S_MAX
from tests.unit.compaction.logs import compactor_of, contents, fill, open_log

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lithify.log.log import Log

ONLY_ASKED = ScheduleSettings(period_ms=None, threshold_bytes=None)


class FailsOnce:
    """A rule that cannot decide the first time."""

    def __init__(self) -> None:
        self.asked = 0

    def judge(self, question: Question) -> Iterator[Judgement]:
        self.asked += 1
        if self.asked == 1:
            raise PlanStale("not now")
        yield from GivenLiveSet(LiveSet.from_range(0, 5)).judge(question)

    def facts(self) -> dict[str, object]:
        return {}


def log_with(segments: int, directory: str) -> tuple[MemoryFileSystem, Log]:
    fs = MemoryFileSystem()
    log = open_log(fs, directory)
    fill(log, segments=segments)
    return fs, log


def test_nothing_is_due_until_somebody_asks() -> None:
    fs, log = log_with(3, "/a")
    clock = ManualClock()
    service = CompactionService(ONLY_ASKED, clock=clock)
    service.add("a", compactor_of(log, fs, range(5), clock=clock), disk="d")
    assert isinstance(service.work("d"), Wait)
    service.request("a")
    assert service.work("d") is None
    assert set(contents(log)) == set(range(5))
    assert not log.manifest.retired
    assert isinstance(service.work("d"), Wait)


def test_new_bytes_above_the_threshold_call_for_a_run() -> None:
    fs, log = log_with(1, "/a")
    clock = ManualClock()
    settings = ScheduleSettings(period_ms=None, threshold_bytes=3000)
    service = CompactionService(settings, clock=clock)
    compactor = compactor_of(log, fs, range(5), clock=clock)
    service.add("a", compactor, disk="d")
    assert isinstance(service.work("d"), Wait)
    fill(log, segments=2)
    assert compactor.observe().new_entries == 30
    assert service.work("d") is None
    assert compactor.observe().new_entries == 0
    assert isinstance(service.work("d"), Wait)


def test_an_idle_log_is_visited_too() -> None:
    fs, log = log_with(2, "/a")
    clock = ManualClock()
    service = CompactionService(ScheduleSettings(period_ms=60_000), clock=clock)
    service.add("a", compactor_of(log, fs, range(5), clock=clock), disk="d")
    clock.advance(60)
    assert service.work("d") is None
    assert set(contents(log)) == set(range(5))


def test_a_failing_log_is_quarantined_and_tried_again_by_itself() -> None:
    fs, log = log_with(2, "/a")
    clock = ManualClock()
    service = CompactionService(ONLY_ASKED, clock=clock)
    service.add("a", compactor_of(log, fs, FailsOnce(), clock=clock), disk="d")
    service.request("a")
    assert service.work("d") is None
    (status,) = service.status()
    assert status.state is State.QUARANTINED
    assert status.last_result == "failed: not now"
    wait = service.work("d")
    assert isinstance(wait, Wait)
    assert wait.until_ms == clock.now_ms() + ONLY_ASKED.backoff_ms
    clock.advance(ONLY_ASKED.backoff_ms / 1000)
    assert service.work("d") is None
    assert service.status()[0].last_result == "done"
    assert set(contents(log)) == set(range(5))


def test_an_unfinished_run_is_taken_up() -> None:
    fs, log = log_with(2, "/a")
    clock = ManualClock()
    service = CompactionService(ONLY_ASKED, clock=clock)
    compactor = compactor_of(log, fs, range(5), clock=clock)
    service.add("a", compactor, disk="d")
    with fs.open_append("/a/JOURNAL") as file:
        file.write(b"damaged")
        file.fsync()
    assert compactor.observe().unfinished
    assert service.work("d") is None
    assert not compactor.observe().unfinished


def test_a_log_that_is_removed_is_not_compacted() -> None:
    fs, log = log_with(2, "/a")
    service = CompactionService(ONLY_ASKED, clock=ManualClock())
    service.add("a", compactor_of(log, fs, range(5)), disk="d")
    service.remove("a")
    with pytest.raises(InvalidInput, match="no log named a"):
        service.request("a")


def test_threads_do_the_work_and_end() -> None:
    class Tells(FailsOnce):
        def judge(self, question: Question) -> Iterator[Judgement]:
            self.asked = 1
            yield from super().judge(question)
            judged.set()

    judged = threading.Event()
    fs, log = log_with(2, "/a")
    service = CompactionService(ONLY_ASKED)
    service.add("a", compactor_of(log, fs, Tells()), disk="d")
    service.start()
    service.request("a")
    assert judged.wait(PROCESS_S_MAX)
    service.stop()
    assert service.status()[0].state in {State.IDLE, State.QUARANTINED}
