"""What a run of a topic may use, held against what it has used."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self

import pytest

from lithify.clock import SystemClock
from lithify.compaction.limits.budget import Budget
from lithify.compaction.reports.status import CompactionState
from lithify.compaction.tasks.jobs import LocalJobs
from lithify.errors import RunCancelled, RunRefused
from lithify.events import ignore_events
from lithify.fs import MemoryFileSystem
from lithify.settings import LogSettings
from lithify.topics.compaction.dead_sets import DeadSetTask
from lithify.topics.compaction.newest_per_key import ROW_BYTES
from lithify.topics.definitions.compaction_settings import TopicCompactionSettings
from lithify.topics.definitions.topic_names import TopicName
from lithify.topics.topic import Topic
from tests.unit.topics import segments

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lithify.fs import File

KIB = 2**10


class Metered(MemoryFileSystem):
    """Counts the bytes that pass."""

    def __init__(self) -> None:
        super().__init__()
        self.read_bytes = self.written_bytes = 0

    def open_read(self, path: str) -> Any:
        return MeteredFile(self, super().open_read(path))

    def open_append(self, path: str, *, exclusive: bool = False, uncached: bool = False) -> Any:
        return MeteredFile(self, super().open_append(path, exclusive=exclusive, uncached=uncached))


class MeteredFile:
    """A file of it."""

    def __init__(self, meter: Metered, file: File) -> None:
        self._meter = meter
        self._file = file

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()

    def pread(self, length: int, offset: int) -> bytes:
        found = self._file.pread(length, offset)
        self._meter.read_bytes += len(found)
        return found

    def readinto(self, buffer: memoryview, offset: int) -> int:
        count = self._file.readinto(buffer, offset)
        self._meter.read_bytes += count
        return count

    def write(self, data: bytes) -> None:
        self._meter.written_bytes += len(data)
        self._file.write(data)

    def writev(self, buffers: list[bytes]) -> None:
        self._meter.written_bytes += sum(map(len, buffers))
        self._file.writev(buffers)


class Limited:
    """A topic of short messages, of which key indexes are a large part."""

    def __init__(self, messages: int = 4000, keys: int = 3000) -> None:
        self.fs = Metered()
        self.settings = TopicCompactionSettings(live_ratio_min=1.0)
        self.topic = Topic.open(
            self.fs,
            "/t",
            TopicName.parse("orders"),
            settings=LogSettings(segment_bytes_max=2**22),
            clock=SystemClock(),
            events=ignore_events,
            compaction_settings=lambda: self.settings,
        )
        self.add(messages, keys)

    def add(self, messages: int, keys: int) -> None:
        bodies = [segments.single(f"k{number % keys}") for number in range(messages)]
        ones = [1] * messages
        self.topic.writer.append_entries(bodies, times=ones, counts=ones).result()
        self.topic.log.roll()

    def limit(self, **settings: int) -> None:
        self.settings = TopicCompactionSettings(live_ratio_min=1.0, **settings)  # type: ignore[arg-type]

    def run(self, jobs: Any = None) -> tuple[float, int, int]:
        """(seconds, bytes read, bytes written) of a run."""
        before = self.fs.read_bytes, self.fs.written_bytes
        start_s = time.monotonic()
        assert self.topic.compaction.run("test", jobs).result == "done"
        seconds = time.monotonic() - start_s
        return seconds, self.fs.read_bytes - before[0], self.fs.written_bytes - before[1]

    def keys(self) -> int:
        return sum(1 for _ in self.topic.read(compacted=True))


@pytest.fixture(scope="module", autouse=True)
def compiled() -> None:
    """What is compiled or loaded first must not count as waiting."""
    Limited(100, 10).run()


RATE = 3072 * KIB
MARGIN = 1.1
"""Headers and tables of files, which are small beside a segment of the usual size, do not count."""


def test_the_read_rate_holds_for_the_log_and_for_the_key_indexes_of_what_was_there_before() -> None:
    """The first run reads the new messages; the next one little but indexes."""
    limited = Limited(20_000, 15_000)
    limited.limit(compaction_read_bytes_per_s=RATE)
    for _ in range(2):
        seconds, read_bytes, _ = limited.run()
        assert read_bytes > 1000 * KIB
        assert read_bytes / seconds < MARGIN * RATE
        limited.add(100, 50)


def test_the_write_rate_holds_for_segments_and_their_key_indexes() -> None:
    limited = Limited(20_000, 15_000)
    limited.limit(compaction_write_bytes_per_s=RATE)
    for _ in range(2):
        seconds, _, written_bytes = limited.run()
        assert written_bytes > 1000 * KIB
        assert written_bytes / seconds < MARGIN * RATE
        # All of it is rewritten once more.
        limited.add(100, 50)


SLOW = Budget(read_bytes_per_s=KIB, write_bytes_per_s=KIB)


def slowed(task: Any) -> Any:
    if isinstance(task, DeadSetTask):
        return replace(task, index=replace(task.index, budget=SLOW))
    return replace(task, budget=SLOW)


@pytest.mark.parametrize("phase", ["index", "survivors", "dead sets", "rewrite"])
def test_a_run_that_waits_for_its_rate_is_cancelled_at_once(phase: str) -> None:
    """At a kibibyte a second any of these takes minutes."""
    limited = Limited()
    topic = limited.topic
    checks = iter(range(100))

    class Slow(LocalJobs):
        def run(self, name: str, function: Any, tasks: Any, **more: Any) -> Iterator[Any]:
            if name != phase:
                return super().run(name, function, tasks, **more)

            def check() -> None:
                if next(checks) == 4:
                    topic.compaction.cancel()
                more["check"]()

            given = {**more, "check": check}
            return super().run(name, function, [slowed(task) for task in tasks], **given)

    start_s = time.monotonic()
    with pytest.raises(RunCancelled):
        topic.compaction.run("test", Slow())
    assert time.monotonic() - start_s < 10
    assert topic.log.manifest.view is None
    assert [each.result for each in topic.compaction.history.newest(9)] == ["cancelled"]


def test_a_task_judges_as_many_rows_as_its_memory_holds() -> None:
    limited = Limited(messages=30_000, keys=30_000)
    rows: list[int] = []

    class Watched(LocalJobs):
        slots = 2

        def run(self, name: str, function: Any, tasks: Any, **more: Any) -> Iterator[Any]:
            for number, result in super().run(name, function, tasks, **more):
                if name == "survivors":
                    rows.append(sum(each.rows for each in result))
                yield number, result

    limited.limit(compaction_memory_bytes=2**20)
    limited.run(Watched())
    assert sum(rows) == 30_000
    # Buckets are by hash, and none is exactly as large as the next.
    assert max(rows) < 1.15 * 2**20 / Watched.slots / ROW_BYTES
    assert limited.keys() == 30_000


def test_a_run_that_needs_more_scratch_space_than_it_may_have_is_refused() -> None:
    limited = Limited()
    limited.run()
    limited.add(100, 50)
    manifest = limited.topic.log.manifest
    limited.limit(compaction_scratch_bytes=10 * KIB)
    with pytest.raises(RunRefused, match=r"scratch space\): needs \d+ bytes .* limit 10240 bytes"):
        limited.run()
    assert limited.topic.log.manifest == manifest
    status = limited.topic.compaction.status()
    assert (status.state, "scratch space" in status.error) == (CompactionState.ERROR, True)
    assert limited.keys() == 3000 + 100, "the old view, and the log above it"
    limited.limit(compaction_scratch_bytes=2**20)
    limited.run()
    assert limited.keys() == 3000
