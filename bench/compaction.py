"""Compaction of topics against what it cannot do without, and against other ways to do it.

All runs but the small ones are jobs of one Spark session of this process, `local[2,4]`, that is
warm: the round that does not count starts its workers. Data are those of `keyed.py`, in segments of
256 MiB, in the page cache as far as it goes. A first run is repeated by deleting the compacted
view and all key indexes.

The raw side of most rows is two processes, one for each core, that read every byte once, write as
many bytes as are live once, and make them durable (`copying.py`). Other ways (`queries.py`) read
Parquet files that have the same keys and values, whose making does not count, and write Parquet
without fsync.
"""

from __future__ import annotations

import importlib.util
import json
import operator
import os
import shutil
import tempfile
import time
import urllib.request
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from itertools import count
from typing import TYPE_CHECKING

from bench import queries
from bench.copying import Workers
from bench.harness import Case
from bench.keyed import KEY_BYTES, Load, fill, parquet_batches
from bench.memory import Peak, watched
from bench.served import serving_here
from lithify.blobs.compaction.store_compaction import BLOB_TASKS
from lithify.clock import SystemClock
from lithify.compaction.tasks.jobs import ignore_progress, no_check
from lithify.events import ignore_events
from lithify.fs import LocalFileSystem
from lithify.log.log import Log
from lithify.pipeline.jobs import SparkJobs
from lithify.pipeline.session import open_session
from lithify.positions import PACKED
from lithify.settings import Durability, LogSettings
from lithify.topics.compaction.topic_compaction import TOPIC_TASKS, TopicCompaction
from lithify.topics.definitions.compaction_settings import TopicCompactionSettings
from lithify.topics.messages.message_pb2 import LZ4, ZSTD, CompressionType

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import SparkSession

    from lithify.compaction.reports.report import Report
    from lithify.log.manifest import SegmentRef

__all__ = ["CASES", "FULL", "GIB", "QUICK", "Sizes", "session"]

BODY_BYTES = 1024
BATCH = 100
MEMORY_MB_MAX = 2500
KEYS_MEMORY_MB_MAX = 3000


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much one round does."""

    rounds: int
    messages: int
    """Of 1 KiB."""
    keys: int
    """Distinct ones of messages of 100 bytes."""
    segment_bytes: int = 256 * 2**20
    queries_apart: bool = True
    """Whether a query has a process of its own, and a Spark session of its own where it needs one:
    so must it be where figures count."""

    def of(self, gib: float) -> Sizes:
        """The same with another amount of data, and as many keys as go with 8 GiB of it."""
        return replace(self, messages=int(gib * 2**20), keys=int(gib * 50_000_000 / 8))


FULL = Sizes(rounds=3, messages=2**20, keys=6_000_000)
GIB = {
    "compact": 8,
    "compact-next": 8,
    "compact-growth": 8,
    "compact-packed": 4,
    "compact-small": 1,
    "compact-keys": 8,
    "compact-sql": 3,
    "compact-duckdb": 3,
}
"""How much data each row has, unless `--gib` says otherwise."""
QUICK = Sizes(rounds=1, messages=2000, keys=2000, segment_bytes=2**18, queries_apart=False)


# --- a topic's log, its runs, and the session they use ------------------------------------------


@cache
def session() -> SparkSession:
    """The one of this process."""
    return open_session("local[2,4]", preload=(*TOPIC_TASKS, *BLOB_TASKS))


class _Topic:
    """A log full of messages, as a topic has one."""

    def __init__(self, directory: str, load: Load, segment_bytes: int) -> None:
        self.directory = directory
        self.load = load
        # Runs of other programs on the machine must not refuse a run here.
        tempfile.tempdir = os.path.dirname(directory)
        fs = LocalFileSystem()
        settings = LogSettings(durability=Durability.NONE, segment_bytes_max=segment_bytes)
        self.log = Log.open(fs, directory, kind="topic", settings=settings, rule=PACKED)
        fill(self.log, load)
        self._compaction = TopicCompaction(
            fs,
            self.log,
            settings=TopicCompactionSettings,
            clock=SystemClock(),
            events=ignore_events,
        )
        self.report: Report | None = None

    @property
    def gigabytes(self) -> float:
        return sum(segment.frame_bytes for segment in self.log.manifest.segments) / 1e9

    @property
    def live_fraction(self) -> float:
        assert self.report is not None
        return self.report.kept_bytes / (self.gigabytes * 1e9)

    def paths(self) -> list[str]:
        return [f"{self.directory}/{segment.name}" for segment in self._sealed()]

    def ids(self) -> list[str]:
        return [str(segment.id) for segment in self._sealed()]

    def _sealed(self) -> list[SegmentRef]:
        return [segment for segment in self.log.manifest.segments if segment.sealed]

    def compact(self) -> float:
        """One run; its seconds."""
        jobs = SparkJobs(session())
        began_s = time.perf_counter()
        self.report = self._compaction.run("bench", jobs)
        return time.perf_counter() - began_s

    def compact_anew(self) -> float:
        """A first run."""
        if self.log.manifest.view:
            self._compaction.delete_view()
        for name in os.listdir(self.directory):
            if name.endswith(".keys"):
                os.unlink(f"{self.directory}/{name}")
        os.sync()
        return self.compact()

    def remove(self) -> None:
        self.log.close()
        shutil.rmtree(self.directory)


@contextmanager
def _topic(directory: str, load: Load, sizes: Sizes) -> Iterator[_Topic]:
    topic = _Topic(f"{directory}/{time.monotonic_ns()}", load, sizes.segment_bytes)
    try:
        yield topic
    finally:
        topic.remove()


def _keyed(messages: int, batch: int = 1, codec: int = 0) -> Load:
    return Load(messages, max(1, messages // 5), BODY_BYTES, batch, codec)


# --- the rows -----------------------------------------------------------------------------------


def _two_copies(topic: _Topic) -> Workers:
    """Two processes that copy as much as the last run of the topic kept."""
    paths, fraction = topic.paths(), str(topic.live_fraction)
    commands = [
        ["copy", f"{topic.directory}/raw{half}", fraction, *paths[half::2]] for half in (0, 1)
    ]
    return Workers(commands)


def _against_copies(
    name: str, what: str, topic: _Topic, at_least: float | None, note: Callable[[], str] = str
) -> Iterator[Case]:
    topic.compact_anew()
    with _two_copies(topic) as copies:

        def raw() -> float:
            os.sync()
            return copies.run()

        yield Case(
            name,
            f"first run over {topic.gigabytes:.1f} GB {what}, {topic.live_fraction:.0%} live",
            "two processes that read all and write what is live, fsync",
            at_least,
            topic.gigabytes,
            "GB",
            topic.compact_anew,
            raw,
            note,
        )


def compact(directory: str, sizes: Sizes) -> Iterator[Case]:
    """Single messages, and the same in batches."""
    with _topic(directory, _keyed(sizes.messages), sizes) as topic:
        yield from _against_copies("compact", "of messages of 1 KiB", topic, 0.5)
    with _topic(directory, _keyed(sizes.messages, batch=BATCH), sizes) as topic:
        what = f"of batches of {BATCH}"
        yield from _against_copies("compact (batches)", what, topic, 0.5)


def compact_sql(directory: str, sizes: Sizes) -> Iterator[Case]:
    """What a user would otherwise write: a query over Parquet files."""
    against = "Spark SQL, window over Parquet"
    yield from _against_query("compact-sql", against, 10, "window", directory, sizes)


def compact_duckdb(directory: str, sizes: Sizes) -> Iterator[Case]:
    """The same with another engine, if it is installed."""
    if importlib.util.find_spec("duckdb"):
        against = "DuckDB, semi-join over Parquet"
        yield from _against_query("compact-duckdb", against, 1.5, "semi-join", directory, sizes)


def _against_query(
    name: str, against: str, at_least: float, query: str, directory: str, sizes: Sizes
) -> Iterator[Case]:
    source, target = f"{directory}/parquet", f"{directory}/result"
    load = _keyed(sizes.messages)
    parquet_batches(load, source)
    with (
        _topic(directory, load, sizes) as topic,
        _query(query, source, target, apart=sizes.queries_apart) as run,
    ):

        def raw() -> float:
            os.sync()
            return run()

        what = f"first run over {topic.gigabytes:.1f} GB of messages of 1 KiB"
        ours = topic.compact_anew
        yield Case(name, what, against, at_least, topic.gigabytes, "GB", ours, raw)


@contextmanager
def _query(query: str, source: str, target: str, *, apart: bool) -> Iterator[Callable[[], float]]:
    """What runs the query once and returns its seconds."""
    if apart:
        with Workers([[query, source, target]], module="bench.queries") as workers:
            yield workers.run
        return
    work = queries.prepare(query, source, target, session)

    def run() -> float:
        began_s = time.perf_counter()
        work()
        return time.perf_counter() - began_s

    queries.clean(target)
    yield run


def compact_next(directory: str, sizes: Sizes) -> Iterator[Case]:
    """A run costs what is new."""
    with _topic(directory, _keyed(sizes.messages), sizes) as topic:
        seeds = iter(range(2, 100))

        def next_run() -> float:
            if not topic.log.manifest.view:
                topic.compact()
            more = replace(topic.load, messages=sizes.messages // 20, seed=next(seeds))
            fill(topic.log, more)
            os.sync()
            return topic.compact()

        yield Case(
            "compact-next",
            f"next run after 5 % more than {topic.gigabytes:.1f} GB",
            "the first run over all of it",
            8.33,
            topic.gigabytes,
            "GB",
            next_run,
            topic.compact_anew,
        )


def compact_growth(directory: str, sizes: Sizes) -> Iterator[Case]:
    """Eight times the data, eight times the seconds, and no more memory."""
    factor = 8
    small = _Topic(f"{directory}/small", _keyed(sizes.messages // factor), sizes.segment_bytes)
    with _topic(directory, _keyed(sizes.messages), sizes) as large:
        peaks = Peak(), Peak()

        def run(topic: _Topic, peak: Peak) -> float:
            with watched(peak):
                return topic.compact_anew()

        def note() -> str:
            verdict = "pass" if peaks[1].mb < MEMORY_MB_MAX else "miss"
            seen = f"{peaks[1].mb:.0f} MB at most, {peaks[0].mb:.0f} with an eighth"
            return f"{seen}, under {MEMORY_MB_MAX}: {verdict}"

        yield Case(
            "compact-growth",
            f"first run over {large.gigabytes:.1f} GB",
            f"{factor} first runs over {small.gigabytes:.1f} GB",
            1,
            large.gigabytes,
            "GB",
            lambda: run(large, peaks[1]),
            lambda: factor * run(small, peaks[0]),
            note,
        )
    small.remove()


def compact_keys(directory: str, sizes: Sizes) -> Iterator[Case]:
    """Each message has a key of its own: all stay, and all keys are compared."""
    load = Load(sizes.keys, sizes.keys, 100 - KEY_BYTES, distinct=True)
    with _topic(directory, load, sizes) as topic:
        peak = Peak()

        def run() -> float:
            with watched(peak):
                return topic.compact_anew()

        def note() -> str:
            verdict = "pass" if peak.mb < KEYS_MEMORY_MB_MAX else "miss"
            return f"{peak.mb:.0f} MB at most, under {KEYS_MEMORY_MB_MAX}: {verdict}"

        run()
        with _two_copies(topic) as copies:
            yield Case(
                "compact-keys",
                f"first run over {sizes.keys:,} messages of 100 B, all of different keys",
                "two processes that read all and write it, fsync",
                None,
                sizes.keys,
                "messages",
                run,
                copies.run,
                note,
            )


def compact_packed(directory: str, sizes: Sizes) -> Iterator[Case]:
    """Batches that have to be opened, and most of them made smaller."""
    for name, codec in (("compact-packed", LZ4), ("compact-packed (ZSTD)", ZSTD)):
        load = _keyed(sizes.messages, batch=BATCH, codec=int(codec))
        with _topic(directory, load, sizes) as topic:
            ids = topic.ids()
            halves = [["recompress", topic.directory, *ids[half::2]] for half in (0, 1)]
            with Workers(halves) as pair:
                yield Case(
                    name,
                    f"first run over {sizes.messages:,} messages of 1 KiB in batches of {BATCH}, "
                    f"{CompressionType.Name(codec)}",
                    "opening and compressing all of them, two processes",
                    0.4,
                    sizes.messages,
                    "messages",
                    topic.compact_anew,
                    pair.run,
                )


def compact_small(directory: str, sizes: Sizes) -> Iterator[Case]:
    """What a run costs that has next to nothing to do, asked for by HTTP; a topic for each."""
    tempfile.tempdir = directory
    with serving_here(f"{directory}/node") as (node, http):
        for number in range(sizes.rounds + 1):
            topic = node.topics.get(f"small{number}", create=True)
            fill(topic.log, Load(1000, 200, BODY_BYTES))
        paths = (f"small{number}/compaction" for number in count())
        admin = f"{http}/admin/v2/persistent/public/default"

        def run() -> float:
            os.sync()
            path = f"{admin}/{next(paths)}"
            began_s = time.perf_counter()
            _http("PUT", path)
            while (status := json.loads(_http("GET", path))["status"]) in {"NOT_RUN", "RUNNING"}:
                time.sleep(0.001)
            assert status == "SUCCESS", status
            return time.perf_counter() - began_s

        def empty_job() -> float:
            jobs = node.topics.compactions.queue.jobs
            assert jobs is not None
            began_s = time.perf_counter()
            # Without a weight it is a Spark job, however little it has to do.
            found = jobs.run("empty", operator.is_, [0], check=no_check, progress=ignore_progress)
            assert list(found) == [(0, False)]
            return time.perf_counter() - began_s

        yield Case(
            "compact-small",
            "first run over 1,000 messages, asked for by HTTP of a node that serves",
            "an empty job in the session of the node's worker",
            0.2,
            1,
            "runs",
            run,
            empty_job,
        )


def _http(method: str, url: str) -> bytes:
    with urllib.request.urlopen(urllib.request.Request(url, method=method)) as answer:
        data: bytes = answer.read()
        return data


CASES: dict[str, Callable[[str, Sizes], Iterator[Case]]] = {
    "compact": compact,
    "compact-next": compact_next,
    "compact-growth": compact_growth,
    "compact-packed": compact_packed,
    "compact-small": compact_small,
    "compact-keys": compact_keys,
    "compact-sql": compact_sql,
    "compact-duckdb": compact_duckdb,
}
