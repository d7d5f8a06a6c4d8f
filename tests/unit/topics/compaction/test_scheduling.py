"""Which runs a node starts after a run was killed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from lithify.compaction.run.journal import Journal
from lithify.compaction.scheduling.run_order import REST_MS
from lithify.compaction.scheduling.run_queue import RunQueue
from lithify.compaction.scheduling.triggers import Trigger
from lithify.errors import JobFailed
from lithify.fs import MemoryFileSystem
from lithify.topics.compaction.scheduling import TopicCompactions
from lithify.topics.definitions.compaction_settings import TopicCompactionSettings
from tests.hooked_jobs import HookedJobs
from tests.unit.topics.compaction.test_compacted import Compacted

if TYPE_CHECKING:
    from lithify.compaction.run.journal import RunRecord
    from lithify.compaction.tasks.jobs import Check


class DiskOfAKilledRun(HookedJobs):
    """What a process leaves that is killed when the first target of its run is there."""

    def __init__(self, fs: MemoryFileSystem) -> None:
        self._fs = fs
        self.left: MemoryFileSystem | None = None

    def behind(self, name: str, check: Check) -> None:
        if name == "rewrite" and self.left is None:
            self.left = self._fs.kill_clone()


def killed() -> tuple[Compacted, RunRecord]:
    """A topic whose run was killed while it copied, open again; what the run had decided."""
    fs = MemoryFileSystem()
    before = Compacted(fs)
    before.put("a", "b", "a")
    jobs = DiskOfAKilledRun(fs)
    before.topic.compaction.run(Trigger.ADMIN, jobs)
    assert jobs.left is not None
    bench = Compacted(jobs.left)
    record = Journal(bench.fs, bench.topic.log.directory).read()
    assert record is not None
    return bench, record


def settled(compactions: TopicCompactions, bench: Compacted) -> None:
    while compactions.is_busy(bench.topic):
        pass


def test_a_run_that_was_killed_is_finished_and_no_other_begins() -> None:
    bench, record = killed()
    bench.put("c", "c")
    compactions = TopicCompactions(lambda: {bench.topic.name: bench.topic}, RunQueue(bench.clock))
    for _ in range(2):
        compactions.request_due_runs()
        settled(compactions, bench)
    compactions.close()
    [report] = bench.topic.compaction.history.newest(9)
    assert (report.run_id, report.result) == (record.run_id, "done")
    assert report.reclaimed_bytes == 0, "the log is not trimmed by runs"
    assert bench.topic.compaction.horizon == record.horizon
    assert bench.topic.log.active_bytes, "no run was requested for what came since"
    assert [m.key for m in bench.topic.read(compacted=True)] == [b"b", b"a", b"c", b"c"]


def test_a_request_resumes_the_killed_run_and_starts_a_new_one() -> None:
    bench, record = killed()
    bench.put("c", "c")
    bench.topic.compaction.run(Trigger.ADMIN)
    newest, taken_up = bench.topic.compaction.history.newest(9)
    assert taken_up.run_id == record.run_id
    assert newest.horizon > record.horizon
    assert [m.key for m in bench.topic.read(compacted=True)] == [b"b", b"a", b"c"]


@pytest.mark.parametrize("keys", [("c",), ()])
def test_a_run_that_cannot_be_resumed_is_repeated(keys: tuple[str, ...]) -> None:
    bench, record = killed()
    bench.put(*keys)
    path = f"{bench.topic.log.directory}/JOURNAL"
    bench.fs.remove(path)
    with bench.fs.open_append(path) as file:
        file.write(b"damaged")
    bench.topic.compaction.run(Trigger.UNFINISHED)
    [report] = bench.topic.compaction.history.newest(9)
    assert report.run_id != record.run_id
    assert (report.result, report.horizon) == ("done", record.horizon)


def test_a_clock_that_is_set_back_does_not_stop_compaction() -> None:
    bench = Compacted()
    bench.put("a", "a")
    bench.topic.compaction.settings = lambda: TopicCompactionSettings(compaction_every_ms=60_000)
    compactions = TopicCompactions(lambda: {bench.topic.name: bench.topic}, RunQueue(bench.clock))

    def runs() -> list[str]:
        compactions.request_due_runs()
        settled(compactions, bench)
        return [each.trigger for each in bench.topic.compaction.history.newest(9)]

    assert runs() == []
    bench.clock.jump(-(10**6))
    assert runs() == []
    bench.clock.advance(60)
    assert runs() == ["periodic"]
    bench.put("b")
    compactions.cancel(bench.topic)
    bench.clock.advance(60)
    failing = bench.topic.service
    bench.topic.service = Refusing()  # type: ignore[assignment]
    assert runs() == ["periodic"]
    bench.topic.service = failing
    bench.clock.jump(-(10**6))
    assert runs() == ["periodic"], "it rests after a failure"
    bench.clock.advance(REST_MS / 1000)
    assert runs() == ["periodic", "periodic"]
    compactions.close()


class Refusing:
    """A service whose runs fail."""

    last_compacted_position = -1

    def compact(self, *_: object) -> None:
        raise JobFailed("index", "the worker died")
